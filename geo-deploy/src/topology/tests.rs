use super::*;

fn parse(text: &str) -> Result<Topology, String> {
    toml::from_str(text).map_err(|error: toml::de::Error| error.to_string())
}

/// Asserts that the text is refused, and that the error message contains all `parts`: the field,
/// the values and the correction.
fn refused(text: &str, parts: &[&str]) {
    let error = parse(text).expect_err(text);
    for part in parts {
        assert!(error.contains(part), "{part:?} is missing from: {error}");
    }
}

#[test]
fn paper_survives_a_round_trip_through_toml() {
    let text = toml::to_string(&Topology::paper()).unwrap();
    assert_eq!(parse(&text).unwrap(), Topology::paper());
    assert_eq!(Topology::paper().rtt_ms(4, 3), 92.0);
    assert_eq!(Topology::paper().rtt_ms(2, 2), 0.4);
}

#[test]
fn nearest_follow_the_matrix() {
    let paper = Topology::paper();
    let ca = paper.index("CA").unwrap();
    let names: Vec<&str> = paper
        .nearest_to(ca)
        .iter()
        .map(|&i| paper.names()[i])
        .collect();
    assert_eq!(names, ["OR", "VA", "JP", "IRL"]);
}

#[test]
fn a_pair_may_stand_on_either_side() {
    let t = parse("sites=['A','B']\n[rtt_ms]\nB={A=7}").unwrap();
    assert_eq!((t.rtt_ms(0, 1), t.rtt_ms(1, 0)), (7.0, 7.0));
}

#[test]
fn mistakes_are_named_with_their_mend() {
    refused(
        "sites=['A','B']\n[rtt_ms]\nA={B=7}\nB={A=8}",
        &["rtt_ms.A.B = 7", "rtt_ms.B.A = 8", "keep one"],
    );
    refused(
        "sites=['A','B','C']\n[rtt_ms]\nA={B=7}",
        &["A-C, B-C", "C = 100 to the row A"],
    );
    refused(
        "sites=['A','B']\n[rtt_ms]\nA={X=7}",
        &["rtt_ms.A.X", "\"X\"", "A, B", "correct the name"],
    );
    refused("sites=['A','B','A']", &["\"A\"", "1 and 3", "rename"]);
    refused(
        "sites=['A','B']\n[rtt_ms]\nA={B=-3}",
        &["rtt_ms.A.B = -3", "0 to 60000"],
    );
    refused(
        "sites=['A','B']\n[rtt_ms]\nA={B=nan}",
        &["rtt_ms.A.B = NaN"],
    );
    refused("sites=['A']\nlocal_rtt_ms=inf", &["local_rtt_ms = inf"]);
    refused(
        "sites=['A']\n[rtt_ms]\nA={A=3}",
        &["rtt_ms.A.A = 3", "local_rtt_ms = 0.4"],
    );
    refused("sites=[]", &["0 names", "1 to 64"]);
    refused("sites=['a b']", &["\"a b\"", "letters"]);
    refused("sites=['A']\nrtt=3", &["rtt", "unknown field"]);
    let many: Vec<String> = (0..65).map(|i| format!("'s{i}'")).collect();
    refused(&format!("sites=[{}]", many.join(",")), &["65", "64"]);
}

#[test]
fn a_missing_file_is_named() {
    let error = Topology::load(Path::new("no/such/file.toml")).unwrap_err();
    assert!(error.to_string().contains("no/such/file.toml"));
}

#[test]
fn a_mistake_is_told_with_its_file() {
    let error = Topology::parse("two.toml", "sites=['A','B']").unwrap_err();
    let error = error.to_string();
    assert!(
        error.contains("two.toml") && error.contains("no round trip for A-B"),
        "{error}"
    );
}

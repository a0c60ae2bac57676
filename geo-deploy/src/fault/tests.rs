use rand::SeedableRng as _;
use rand_pcg::Pcg64Mcg;

use super::*;
use crate::topology::Topology;

#[derive(serde::Deserialize)]
struct File {
    fault: Vec<FaultSpec>,
}

fn parse(text: &str) -> Vec<FaultSpec> {
    toml::from_str::<File>(text)
        .expect("a file of faults")
        .fault
}

/// Returns the effects of one fault in a cluster. In this cluster, `CA` leads, and `CA`, `OR` and
/// `VA` hold the hottest key.
fn effects(text: &str) -> Result<Vec<Effect>, String> {
    let topology = Topology::paper();
    let site = |name: &str| topology.index(name).expect("a site");
    let mut rng = Pcg64Mcg::seed_from_u64(1);
    let mut context = FaultContext {
        topology: &topology,
        leader: Some(site("CA")),
        holders: vec![site("CA"), site("VA"), site("OR")],
        up: vec![true; topology.len()],
        rng: &mut rng,
    };
    let text = format!("[[fault]]\nat_s = 1\n{text}");
    parse(&text)[0].begin(&mut context)
}

#[test]
fn roles_are_who_has_them_when_the_fault_begins() {
    let kill = |target: &str| effects(&format!("action = \"kill\"\ntarget = {target}"));
    // Indices of the sites: JP 0, CA 1, OR 2, VA 3, IRL 4.
    assert_eq!(kill("\"leader\""), Ok(vec![Effect::Kill(1)]));
    assert_eq!(kill("\"holder\""), Ok(vec![Effect::Kill(2)]));
    assert_eq!(kill("\"nearest\""), Ok(vec![Effect::Kill(2)]));
    assert_eq!(
        kill("[\"JP\", \"leader\", \"CA\"]"),
        Ok(vec![Effect::Kill(0), Effect::Kill(1)])
    );
    assert_eq!(kill("\"all\"").map(|effects| effects.len()), Ok(5));
    assert_eq!(kill("\"random\"").map(|effects| effects.len()), Ok(1));
}

#[test]
fn roles_are_told_beside_whom_they_meant() {
    let topology = Topology::paper();
    let mut rng = Pcg64Mcg::seed_from_u64(1);
    let mut context = FaultContext {
        topology: &topology,
        leader: topology.index("CA"),
        holders: Vec::new(),
        up: vec![true; topology.len()],
        rng: &mut rng,
    };
    let mut told = |fault: FaultSpec| {
        let named = fault.named(&mut context).expect("somebody leads");
        fault.in_words(&named)
    };
    let cut = |target: FaultTarget| FaultSpec::now(FaultAction::Partition, vec![target]);
    assert_eq!(
        told(cut(FaultTarget::Leader)),
        "partition CA from the others (leader)"
    );
    assert_eq!(
        told(cut(FaultTarget::named("JP"))),
        "partition JP from the others"
    );
    let to = vec![FaultTarget::Leader];
    let both = FaultSpec {
        to,
        ..cut(FaultTarget::named("JP"))
    };
    assert_eq!(told(both), "partition JP from CA");
}

#[test]
fn one_way_partitions_cut_one_way_and_are_mended_where_they_were_cut() {
    let cut = LinkState {
        cut: true,
        ..LinkState::default()
    };
    let out = effects(
        "action = \"partition\"\ntarget = \"JP\"\nto = [\"CA\", \"OR\"]\ndirection = \"out\"",
    );
    let out = out.expect("links");
    assert_eq!(
        out,
        [
            Effect::Fail {
                from: 0,
                to: 1,
                how: cut
            },
            Effect::Fail {
                from: 0,
                to: 2,
                how: cut
            }
        ]
    );
    assert_eq!(
        out[0].inverse(),
        Some(Effect::Mend {
            from: 0,
            to: 1,
            how: cut
        })
    );
    let both = effects("action = \"partition\"\ntarget = [\"JP\", \"CA\"]").expect("links");
    assert_eq!(both.len(), 12, "two sites, three others, both ways");
    let none = effects("action = \"partition\"\ntarget = \"JP\"\nto = \"JP\"");
    assert!(none.is_err_and(|error| error.contains("no link is left")));
}

#[test]
fn faults_of_a_link_add_up_and_one_that_ends_leaves_the_others() {
    let slow = LinkState {
        delay_ms: 10.0,
        ..LinkState::default()
    };
    let lossy = LinkState {
        loss: 0.5,
        ..LinkState::default()
    };
    let all = LinkState::of([slow, lossy, lossy, slow]);
    assert_eq!(
        all,
        LinkState {
            cut: false,
            delay_ms: 20.0,
            loss: 0.75
        }
    );
    assert_eq!(LinkState::of([]), LinkState::default());
}

#[test]
fn what_is_read_is_what_is_written() {
    let text = "[[fault]]\nat_s = 10.0\nuntil_s = 20.0\naction = \"slow\"\ntarget = [\"JP\"]\n\
                to = [\"leader\"]\ndirection = \"in\"\ndelay_ms = 50.0\n";
    let faults = parse(text);
    assert_eq!(faults[0].to_string(), "slow JP from leader (in) by 50 ms");
    let written = toml::to_string(&faults[0]).expect("toml");
    assert_eq!(
        toml::from_str::<FaultSpec>(&written).expect("read again"),
        faults[0]
    );
    for action in FaultAction::ALL {
        let text = toml::Value::try_from(action).expect("a string");
        assert_eq!(text.as_str(), Some(action.name()));
    }
}

#[test]
fn whom_a_fault_means_is_named_once_and_has_another_side() {
    let cases = [
        ("kill", "target = [\"JP\", \"CA\", \"JP\"]", "target", "JP"),
        (
            "pause",
            "target = [\"leader\", \"leader\"]",
            "target",
            "leader",
        ),
        (
            "loss",
            "target = \"JP\"\nto = [\"CA\", \"CA\"]\nloss = 0.1",
            "to",
            "CA",
        ),
        ("partition", "target = \"JP\"\nto = \"JP\"", "to", "JP"),
        (
            "partition",
            "target = [\"JP\", \"leader\"]\nto = [\"leader\", \"JP\"]",
            "to",
            "leader, JP",
        ),
        ("partition", "target = \"all\"", "target", "all"),
    ];
    for (action, rest, field, found) in cases {
        let text = format!("[[fault]]\nat_s = 1\nuntil_s = 2\naction = \"{action}\"\n{rest}");
        let refused = check(&parse(&text), &Topology::paper()).expect_err(&text);
        let (field, found) = (format!("fault.1.{field}"), found.to_owned());
        assert_eq!((refused.field, refused.found), (field, found), "{text}");
    }
    // The target is a role, so a site in `to` may still be on the other side.
    for rest in [
        "target = [\"JP\", \"leader\"]",
        "target = \"JP\"\nto = [\"JP\", \"CA\"]",
    ] {
        let text = format!("[[fault]]\nat_s = 1\naction = \"partition\"\n{rest}");
        assert_eq!(check(&parse(&text), &Topology::paper()), Ok(()));
    }
}

#[test]
fn faults_that_make_no_sense_are_refused_with_the_field_and_the_mend() {
    let cases = [
        (
            "at_s = -1\naction = \"kill\"\ntarget = \"JP\"\nuntil_s = 3",
            "fault.1.at_s",
        ),
        (
            "at_s = 5\naction = \"kill\"\ntarget = \"JP\"\nuntil_s = 5",
            "fault.1.until_s",
        ),
        (
            "at_s = 5\naction = \"restart\"\ntarget = \"JP\"\nuntil_s = 6",
            "fault.1.until_s",
        ),
        (
            "at_s = 5\naction = \"kill\"\ntarget = \"XX\"",
            "fault.1.target",
        ),
        ("at_s = 5\naction = \"kill\"\ntarget = []", "fault.1.target"),
        (
            "at_s = 5\naction = \"kill\"\ntarget = \"JP\"\nto = \"CA\"",
            "fault.1.to",
        ),
        (
            "at_s = 5\naction = \"kill\"\ntarget = \"JP\"\ndirection = \"in\"",
            "fault.1.direction",
        ),
        (
            "at_s = 5\naction = \"slow\"\ntarget = \"JP\"",
            "fault.1.delay_ms",
        ),
        (
            "at_s = 5\naction = \"loss\"\ntarget = \"JP\"\nloss = 1.5",
            "fault.1.loss",
        ),
        (
            "at_s = 5\naction = \"kill\"\ntarget = \"all\"",
            "fault.1.until_s",
        ),
        (
            "at_s = 5\naction = \"pause\"\ntarget = [\"JP\", \"CA\", \"OR\"]",
            "fault.1.until_s",
        ),
        (
            "at_s = 5\nuntil_s = 9\naction = \"kill\"\ntarget = \"JP\"\n\
             [[fault]]\nat_s = 7\naction = \"pause\"\ntarget = \"JP\"",
            "fault.2.at_s",
        ),
        (
            "at_s = 1\naction = \"kill\"\ntarget = \"leader\"\n\
             [[fault]]\nat_s = 2\naction = \"kill\"\ntarget = \"JP\"\n\
             [[fault]]\nat_s = 3\naction = \"kill\"\ntarget = \"CA\"",
            "fault.3.until_s",
        ),
    ];
    for (text, field) in cases {
        let faults = parse(&format!("[[fault]]\n{text}"));
        let refused = check(&faults, &Topology::paper()).expect_err(text);
        assert_eq!(refused.field, field, "{text}: {}", refused.fix);
    }
    let good = "[[fault]]\nat_s = 5\nuntil_s = 9\naction = \"kill\"\ntarget = \"JP\"\n\
                [[fault]]\nat_s = 9.5\naction = \"pause\"\ntarget = \"JP\"\n\
                [[fault]]\nat_s = 1\naction = \"partition\"\ntarget = \"JP\"\n";
    assert_eq!(check(&parse(good), &Topology::paper()), Ok(()));
}

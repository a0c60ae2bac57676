//! Tests of plots of interval logs.

use super::support::Place;

#[test]
fn the_log_of_an_experiment_becomes_pictures_in_three_formats() {
    let place = Place::new();
    let run = "exp run demo --set topology=near.toml --set requests=20 --set warmup=5 \
               --set keys=20 --set clients=1 --set strategies=leader,all --out report";
    place.words(run).good();
    let said = place
        .words("plot report/latency.hlog --out pictures")
        .good();
    for name in ["timeline-LL", "timeline-ML", "cdf", "cdf-wide"] {
        assert!(said.contains(&format!("pictures/{name}.svg")), "{said}");
        assert!(
            place
                .read(&format!("pictures/{name}.svg"))
                .starts_with("<svg")
        );
    }
    // The same log twice is two load generators of one run, or two runs if they are named.
    let both = "plot A=report/latency.hlog B=report/latency.hlog --out named";
    assert!(place.words(both).good().contains("named/timeline-A-LL.svg"));
}

#[test]
fn what_is_no_log_is_named_and_nothing_is_written() {
    let place = Place::new();
    place.words("plot").misused(&["FILE"]);
    place
        .words("plot none.hlog")
        .refused(&["none.hlog", "No such file"]);
    place.write("words.hlog", "words\n");
    place.words("plot words.hlog").refused(&[
        "words.hlog",
        "not an interval log",
        "line 1",
        "latency.hlog",
    ]);
    place.write("empty.hlog", "#[Histogram log format version 1.3]\n");
    place
        .words("plot empty.hlog")
        .refused(&["no operation", "READ"]);
    assert!(!place.path("plots").exists());
}

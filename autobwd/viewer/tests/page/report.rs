//! Reports of runs: what they keep of a log, and which logs they refuse.

use autobwd::{
    Result,
    viewer::{ReportedDifference, ReportedRecord, RunReport, SegmentVerdict},
};
use serde_json::{Value, json};

use super::{between, data};
use crate::runs::{falling, log, record};

const HEADER: &str = r#"{"schema":"autobwd.log/1","values":["loss"]}"#;

fn page(logs: &[(&str, &str)]) -> Result<String> {
    let mut report = RunReport::new();
    for (name, log) in logs {
        report.add_run(name, log.as_bytes())?;
    }
    report.to_html()
}

/// The data of the only run in a report.
fn run(log: &str) -> Value {
    data(&page(&[("run", log)]).unwrap())["runs"][0].take()
}

fn refusal(log: &str) -> String {
    page(&[("run", log)]).unwrap_err().to_string()
}

fn curve<'a>(run: &'a Value, quantity: &str, name: &str) -> &'a Value {
    let mut curves = run["curves"].as_array().unwrap().iter();
    curves.find(|curve| curve["quantity"] == quantity && curve["name"] == name).unwrap()
}

#[test]
fn report_has_every_step_of_a_short_run() {
    let run = run(&log(&[3.0, f64::NAN, 1.5, f64::NEG_INFINITY], 2));
    assert_eq!(run["records"], 4);
    assert_eq!(run["spans"], json!([[1, 1, 0.01], [2, 2, 0.02], [3, 3, 0.03], [4, 4, 0.04]]));
    let loss = curve(&run, "value", "loss");
    assert_eq!(loss["mean"], json!([3.0, null, 1.5, null]));
    assert_eq!((&loss["marks"], &loss["low"]), (&json!([1, 3]), &Value::Null));
    assert_eq!((&loss["last"], &loss["not_finite"]), (&json!("-inf"), &json!([2, 2])));
    assert_eq!((&loss["least"], &loss["most"]), (&json!([3, 1.5]), &json!([1, 3.0])));
    assert_eq!(
        curve(&run, "parameter_gradient_norm", "linear_1.w")["mean"],
        json!([0.5, 0.25, 0.166667, 0.125])
    );
    assert_eq!(curve(&run, "gradient_norm", "")["mean"][0], json!(1.11803));
    assert_eq!(curve(&run, "seconds_per_step", "")["mean"], json!([null, 0.01, 0.01, 0.01]));
    assert_eq!(curve(&run, "peak_bytes", "")["last"], json!(4096.0));
    assert_eq!(run["without_gradient"], json!(["frozen"]));
}

#[test]
fn long_run_keeps_its_extremes_in_little_space() -> Result<()> {
    let mut losses = falling(20_000);
    (losses[17_777], losses[3_333], losses[5_000]) = (1e6, -5.0, f64::NAN);
    let long = log(&losses, 1);
    let run = run(&long);
    let points = run["spans"].as_array().unwrap();
    assert!((1024..=2048).contains(&points.len()));
    assert_eq!((&points[0][0], &points[points.len() - 1][1]), (&json!(1), &json!(20_000)));
    let loss = curve(&run, "value", "loss");
    let of =
        |key: &str| loss[key].as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect::<Vec<_>>();
    assert_eq!(of("high").into_iter().fold(0.0, f64::max), 1e6);
    assert_eq!(of("low").into_iter().fold(0.0, f64::min), -5.0);
    assert_eq!((loss["marks"].as_array().unwrap().len(), &loss["not_finite"]), (1, &json!([1, 5_001])));
    let mean = of("mean")[points.len() - 1];
    assert!((mean - 0.3).abs() < 0.2, "{mean}");

    let many = log(&falling(2500), 40);
    let page = page(&[("long", &long), ("second", &long), ("many", &many), ("more", &many)])?;
    assert!(page.len() < 2_000_000, "{}", page.len());
    Ok(())
}

#[test]
fn incomplete_last_line_is_left_out() {
    let whole = log(&falling(3), 1);
    for cut in 1..60 {
        let run = run(&whole[..whole.len() - 1 - cut]);
        assert_eq!((&run["records"], &run["cut_line"]), (&json!(2), &json!(4)));
    }
    // Only its newline is missing.
    let run = run(&whole[..whole.len() - 1]);
    assert_eq!((&run["records"], &run["cut_line"]), (&json!(3), &Value::Null));
}

#[test]
fn runs_without_steps_are_shown() {
    let empty = run(&log(&[], 2));
    assert_eq!((&empty["records"], &empty["spans"], &empty["ends"]), (&json!(0), &json!([]), &Value::Null));
    assert!(page(&[]).unwrap().contains("<title>Training runs</title>"));
}

#[test]
fn malformed_logs_are_refused_with_their_line() {
    let with = |lines: &str| refusal(&format!("{HEADER}\n{lines}\n"));
    let step = r#"{"step":3,"time_s":1}"#;
    for (found, expected) in [
        (refusal(""), "line 1: the log is empty; the first line of a log is its header"),
        (refusal("loss 3.0\n"), "line 1: column 1: expected value"),
        (
            refusal("{\"schema\":\"autobwd.run/1\"}\n"),
            "line 1: the schema is \"autobwd.run/1\"; \"autobwd.log/1\" is expected",
        ),
        (with(&format!("{step}\n{{\"step\":4\n{step}")), "line 3: column 9: EOF while parsing an object"),
        (with(&format!("{step}\n{step}")), "line 3: step 3 follows step 3; steps ascend"),
        (
            with(&format!("{step}\n{{\"step\":4,\"time_s\":0.5}}")),
            "line 3: time_s 0.5 follows 1; times ascend",
        ),
        (with(&format!("{step}\n{HEADER}")), "line 3: a second header; each run has a log of its own"),
        (with(r#"{"step":-1,"time_s":1}"#), "line 2: column 10: invalid value: integer `-1`, expected u64"),
        (
            with(r#"{"step":1,"time_s":1,"values":{"loss":"none"}}"#),
            "line 2: column 45: \"none\" is neither a number nor \"NaN\", \"Infinity\" or \"-Infinity\"",
        ),
        (with("\u{0}"), "line 2: column 1: expected value"),
    ] {
        assert_eq!(found, expected);
    }
    let mut report = RunReport::new();
    report.add_run("a", HEADER.as_bytes()).unwrap();
    let twice = report.add_run("a", HEADER.as_bytes()).unwrap_err();
    assert_eq!(twice.to_string(), "two runs have the name `a`; give each a name of its own");
}

#[test]
fn endless_lines_fail_before_they_fill_the_memory() {
    let endless = std::io::BufReader::new(std::io::repeat(b'['));
    let e = RunReport::new().add_run("endless", endless).unwrap_err();
    assert_eq!(e.to_string(), "line 1: longer than 16777216 bytes");
}

#[test]
fn names_of_runs_and_variables_stay_in_the_data() -> Result<()> {
    let hostile = "</script><script>alert(1)</script>";
    let log = log(&falling(3), 1).replace("loss", "<!--</script>{{script}}");
    let html = page(&[(hostile, &log)])?;
    let embedded = between(&html, "<script type=\"application/json\" id=\"data\">", "</script>");
    assert!(!embedded.contains('<'));
    assert_eq!(data(&html)["runs"][0]["name"], hostile);
    assert_eq!(html.matches("</script>").count(), 2);
    Ok(())
}

#[test]
fn records_are_shown_with_their_segments_and_differences() -> Result<()> {
    let mut report = RunReport::new();
    report.add_run("a", HEADER.as_bytes())?;
    report.add_record("a", record(250, &[(100, SegmentVerdict::Refused)]))?;
    report.add_record("b", record(20, &[]))?;
    let difference =
        ReportedDifference { records: ["a".into(), "b".into()], ..ReportedDifference::default() };
    report.add_difference(difference.clone())?;
    let mut data = data(&report.to_html()?);
    let shown = &data["records"][0];
    assert_eq!(
        (&shown["name"], &shown["steps"], &shown["is_finished"]),
        (&json!("a"), &json!(250), &json!(true))
    );
    assert_eq!((&shown["states"][1][0], &shown["all_states"]), (&json!(10), &json!(26)));
    assert_eq!(shown["checkpoints"], json!([[0, true], [100, true], [200, true]]));
    let verdicts = shown["segments"].as_array().unwrap().iter().map(|segment| &segment["verdict"]);
    assert_eq!(verdicts.collect::<Vec<_>>(), ["confirmed", "refused", "confirmed"]);
    assert_eq!(data["differences"][0]["records"], json!(["a", "b"]));
    assert_eq!(data["differences"][0]["first_different_state"].take(), Value::Null);

    let twice = report.add_record("a", ReportedRecord::default()).unwrap_err();
    assert_eq!(twice.to_string(), "two records have the name `a`; give each a name of its own");
    let unknown = ReportedDifference { records: ["a".into(), "c".into()], ..difference };
    let unknown = report.add_difference(unknown).unwrap_err();
    assert_eq!(unknown.to_string(), "the report has no record `c`; add it before its differences");
    Ok(())
}

#[test]
fn long_record_keeps_every_nth_state_and_the_last() -> Result<()> {
    let mut report = RunReport::new();
    report.add_record("long", record(1_000_007, &[]))?;
    report.add_record("short", record(9_990, &[]))?;
    let data = data(&report.to_html()?);
    let [long, short] = [0, 1].map(|index| data["records"][index]["states"].as_array().unwrap());
    assert_eq!((long.len(), &long[1][0], &long.last().unwrap()[0]), (992, &json!(1010), &json!(1_000_000)));
    assert_eq!((short.len(), &data["records"][0]["all_states"]), (1000, &json!(100_001)));
    Ok(())
}

//! Logs of runs, as `Monitor` writes them, and pages of their reports.

use std::fmt::Write as _;

use autobwd::{
    Result,
    viewer::{ReportedDifference, ReportedRecord, ReportedSegment, RunReport, SegmentVerdict},
};
use serde_json::{Value, json};

/// A log with these values of the loss, and gradients of some parameters that decay.
pub(crate) fn log(losses: &[f64], parameters: usize) -> String {
    let names: Vec<String> = (0..parameters).map(|k| format!("linear_{k}.w")).collect();
    let declared = names.iter().map(|name| json!({ "name": name, "gradient": format!("{name}@GRAD") }));
    let header = json!({
        "schema": "autobwd.log/1", "values": ["loss"], "learning_rates": ["rate"],
        "parameters": declared.chain([json!({ "name": "frozen", "gradient": null })]).collect::<Vec<_>>(),
    });
    let mut log = format!("{header}\n");
    for (step, loss) in (1_u32..).zip(losses) {
        let decay = f64::from(step).recip();
        let norm = |k: usize| decay / (k + 1) as f64;
        let norms = names.iter().enumerate().map(|(k, name)| (name.clone(), json!(norm(k))));
        let record = json!({
            "step": step, "time_s": f64::from(step) * 0.01, "values": { "loss": number(*loss) },
            "learning_rates": { "rate": 0.1 }, "gradient_norms": norms.collect::<serde_json::Map<_, _>>(),
            "peak_bytes": 4096,
        });
        // Writing to a string does not fail.
        _ = writeln!(log, "{record}");
    }
    log
}

fn number(x: f64) -> Value {
    match x {
        x if x.is_finite() => json!(x),
        x if x.is_nan() => json!("NaN"),
        x if x > 0.0 => json!("Infinity"),
        _ => json!("-Infinity"),
    }
}

/// A loss that falls, with a wave.
#[expect(clippy::disallowed_methods, reason = "a picture")]
pub(crate) fn falling(steps: u32) -> Vec<f64> {
    (1..=steps).map(|step| 3.0 / f64::from(step).sqrt() + 0.2 * f64::from(step).sin() + 0.3).collect()
}

/// Pages of reports, by name.
#[allow(dead_code, reason = "the tests make reports of their own")]
pub(crate) fn reports() -> Result<Vec<(&'static str, String)>> {
    let report = |logs: &[(&str, String)]| -> Result<String> {
        let mut report = RunReport::new().title("Runs of a test");
        for (name, log) in logs {
            report.add_run(name, log.as_bytes())?;
        }
        report.to_html()
    };
    let (short, mut broken) = (falling(40), falling(60));
    broken[9] = f64::NAN;
    broken[10] = f64::INFINITY;
    broken[59] = f64::NEG_INFINITY;
    let hostile = "</script><script>alert(1)</script>\u{202e}\u{7f}";
    let mut cut = log(&short, 2);
    cut.truncate(cut.len() - 20);
    let second = log(&falling(25), 2).replace("loss", "<!--<b>{{script}}");
    Ok(vec![
        ("one", report(&[("only", log(&short, 2))])?),
        (
            "several",
            report(&[("a", log(&short, 3)), ("b", log(&broken, 2)), ("empty", log(&[], 2)), ("cut", cut)])?,
        ),
        ("long", report(&[("long", log(&falling(100_000), 8)), ("short", log(&falling(5_000), 60))])?),
        ("hostile", report(&[(hostile, log(&short, 1)), ("\"'`&<b>", second)])?),
        ("nothing", report(&[])?),
        ("records", records("replayed", "changed", log(&short, 2))?),
        ("hostile-records", records(hostile, "\"'`&<b>", log(&[], 0))?),
    ])
}

/// The page of two records, one of them verified, and the other one killed and changed.
fn records(first: &str, second: &str, log: String) -> Result<String> {
    let mut report = RunReport::new().title("Two records");
    report.add_run(first, log.as_bytes())?;
    report.add_record(first, record(600, &[]))?;
    let mut killed = record(450, &[(200, SegmentVerdict::Refused), (300, SegmentVerdict::Unverifiable)]);
    killed.is_finished = false;
    killed.checkpoints[3].1 = false;
    killed.facts.push((first.into(), second.into()));
    killed.warnings.push("`checkpoint-300.safetensors` is missing: no segment starts after step 300".into());
    report.add_record(second, killed)?;
    report.add_difference(ReportedDifference {
        records: [first.into(), second.into()],
        compared_states: 46,
        last_equal_state: 200,
        first_different_state: Some(210),
        sentences: vec![format!("step 205 is fed other data: row 3 of `{first}`")],
        step: None,
        bisection: "the runs start to differ at step 205\n  reads X = `x`: 1 of 64 elements differ".into(),
    })?;
    report.to_html()
}

/// A record with a hash every 10 steps and a checkpoint every 100, confirmed but for some segments.
pub(crate) fn record(steps: u64, others: &[(u64, SegmentVerdict)]) -> ReportedRecord {
    let segment = |after: u64| {
        let other = others.iter().find(|(start, _)| *start == after);
        let (last, verdict) =
            ((after + 100).min(steps), other.map_or(SegmentVerdict::Confirmed, |known| known.1));
        let result = match verdict {
            SegmentVerdict::Confirmed => "confirmed",
            SegmentVerdict::Refused => "refused: `linear_0.w` and 3 other values differ",
            SegmentVerdict::Unverifiable => "not verified: the checkpoint is missing",
        };
        ReportedSegment { after, last, verdict, text: format!("steps {} to {last}: {result}", after + 1) }
    };
    let hash = |step: u64| format!("{:016x}", (step + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)).repeat(4);
    ReportedRecord {
        facts: vec![("program".into(), "3c6ef372fe94f82a".into()), ("seed".into(), "7".into())],
        steps,
        is_finished: true,
        states: (0..=steps).step_by(10).map(|step| (step, hash(step))).collect(),
        checkpoints: (0..=steps).step_by(100).map(|step| (step, true)).collect(),
        segments: (0..steps).step_by(100).map(segment).collect(),
        damages: vec![],
        warnings: vec![],
    }
}

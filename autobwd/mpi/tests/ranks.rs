//! Runs of `mpirun`: the example of this package, on several ranks.

use std::{
    env,
    path::PathBuf,
    process::{Command, Output, Stdio},
    time::{Duration, Instant},
};

/// The example, which Cargo builds along with this test.
fn digits() -> PathBuf {
    let test = env::current_exe().expect("a test has a path");
    let folder = test.ancestors().nth(2).expect("a test is in `target/PROFILE/deps`");
    folder.join("examples").join("digits")
}

fn mpirun(ranks: usize, arguments: &[&str]) -> Command {
    let mut command = Command::new("mpirun");
    // Containers run tests as root, and on fewer cores than there are ranks.
    command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
    command.env("OMPI_MCA_rmaps_base_oversubscribe", "1");
    command.args(["-n", &ranks.to_string()]).arg(digits()).args(arguments);
    command
}

fn run(ranks: usize, arguments: &[&str]) -> Output {
    mpirun(ranks, arguments).output().expect("`mpirun` starts: MPI is installed")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn ranks_train_together() {
    let mut losses = vec![];
    for ranks in [1, 2, 4] {
        let output = run(ranks, &["--epochs", "3"]);
        let (out, err) = (text(&output.stdout), text(&output.stderr));
        assert!(output.status.success(), "{ranks} ranks: {out}{err}");
        let last = out.lines().last().expect("the last line is the result");
        let (start, accuracy) = last.split_once(",\"ranks\":").expect("a JSON object");
        assert_eq!(accuracy, format!("{ranks}}}"));
        let accuracy: f64 = start.trim_start_matches("{\"accuracy\":").parse().expect("a number");
        assert!(accuracy > 0.9, "{accuracy}");
        losses.push(out.lines().take(3).map(str::to_string).collect::<Vec<_>>());
    }
    // Means over shares of a batch, in other orders: equal to the four digits that are printed.
    assert_eq!(losses[0], losses[1]);
    assert_eq!(losses[0], losses[2]);
}

#[test]
fn an_error_of_a_rank_ends_all_ranks() {
    let output = run(3, &[]);
    let err = text(&output.stderr);
    assert!(!output.status.success());
    assert!(err.contains("3 ranks do not divide a batch of 32 images"), "{err}");
}

#[test]
fn a_killed_rank_ends_all_ranks() {
    let start = Instant::now();
    let command = mpirun(2, &["--epochs", "100000"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let command = command.expect("`mpirun` starts: MPI is installed");
    std::thread::sleep(Duration::from_secs(2));
    let children =
        Command::new("pgrep").args(["-P", &command.id().to_string(), "-n"]).output().expect("`pgrep`");
    let child = text(&children.stdout).trim().to_string();
    let killed = Command::new("kill").args(["-9", &child]).status().expect("`kill`");
    assert!(killed.success(), "rank {child}");
    let output = command.wait_with_output().expect("`mpirun` ends");
    let err = text(&output.stderr);
    assert!(!output.status.success());
    assert!(err.contains("rank") && err.contains("signal 9"), "{err}");
    assert!(start.elapsed() < Duration::from_secs(60));
}

//! Runs of `mpirun`: the examples of this package, on several ranks.

use std::{
    env,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    time::{Duration, Instant},
};

use autobwd::{
    Executor,
    exec::record::{RecordedRun, Segments},
    parallel::threads,
};
use autobwd_ops as _;

/// An example, which Cargo builds along with this test.
fn example(name: &str) -> PathBuf {
    let test = env::current_exe().expect("a test has a path");
    let folder = test.ancestors().nth(2).expect("a test is in `target/PROFILE/deps`");
    folder.join("examples").join(name)
}

fn mpirun(ranks: usize, name: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new("mpirun");
    // Containers run tests as root, and on fewer cores than there are ranks.
    command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
    command.env("OMPI_MCA_rmaps_base_oversubscribe", "1");
    command.args(["-n", &ranks.to_string()]).arg(example(name)).args(arguments);
    command
}

fn run(ranks: usize, name: &str, arguments: &[&str]) -> Output {
    mpirun(ranks, name, arguments).output().expect("`mpirun` starts: MPI is installed")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn ranks_train_together() {
    let mut losses = vec![];
    for ranks in [1, 2, 4] {
        let output = run(ranks, "digits", &["--epochs", "3"]);
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
fn records_of_ranks_are_verified_together() {
    let folder = tempfile::tempdir().expect("a folder");
    let dir = folder.path().to_str().expect("a path in Unicode");
    let output = run(2, "digits", &["--epochs", "2", "--record", dir]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let open = |rank| RecordedRun::open(folder.path().join(rank)).expect("a record");
    let runs = ["rank-0", "rank-1"].map(open);
    assert!(runs[0].states().eq(runs[1].states()));
    let transports = threads::connect(2, Duration::from_secs(60)).into_iter();
    let executor = |transport| Executor::with_threads(1).with_transport(transport);
    let mut executors: Vec<Executor> = transports.map(executor).collect();
    let verifications = RecordedRun::verify_ranks(&runs, &mut executors, Segments::All).expect("a replay");
    assert!(verifications.iter().all(|verification| verification.is_confirmed() && verification.steps == 88));
}

#[test]
fn ranks_have_the_bits_of_one_process() {
    for ranks in [2, 4] {
        let output = run(ranks, "bits", &[]);
        let (out, err) = (text(&output.stdout), text(&output.stderr));
        assert!(output.status.success(), "{ranks} ranks: {out}{err}");
        assert_eq!(out.lines().filter(|line| line.contains("\"same_bits\":true")).count(), 4, "{out}");
    }
}

#[test]
fn resumed_run_ends_in_the_same_bits() {
    let folder = tempfile::tempdir().expect("a folder");
    let [whole, parts] = ["whole", "parts"].map(|name| folder.path().join(name));
    let train = |ranks: usize, file: &Path, epochs: &str| {
        let file = file.to_str().expect("a path in UTF-8");
        let output = run(ranks, "digits", &["--epochs", epochs, "--checkpoint", file, "--resume"]);
        (output.status.success(), text(&output.stdout) + &text(&output.stderr))
    };
    assert!(train(2, &whole, "3").0);
    assert!(train(2, &parts, "1").0);
    let (success, out) = train(2, &parts, "3");
    assert!(success && out.contains("resumed after epoch 1"), "{out}");
    let [whole, resumed] = [&whole, &parts].map(|path| std::fs::read(path).expect("a checkpoint"));
    assert!(whole == resumed, "other bits");
    let (success, out) = train(4, &parts, "3");
    assert!(!success && out.contains("another program"), "{out}");
}

#[test]
fn error_of_a_rank_ends_all_ranks() {
    let output = run(3, "digits", &[]);
    let err = text(&output.stderr);
    assert!(!output.status.success());
    assert!(err.contains("3 ranks do not divide a batch of 32 images"), "{err}");
}

/// The example `faults`: status, both outputs, and whether it took less than 20 seconds.
fn faults(arguments: &[&str]) -> (bool, String) {
    let start = Instant::now();
    let output = run(3, "faults", arguments);
    assert!(start.elapsed() < Duration::from_secs(20), "{arguments:?}");
    (output.status.success(), text(&output.stdout) + &text(&output.stderr))
}

#[test]
fn panic_of_a_rank_ends_all_ranks() {
    let (success, text) = faults(&["panic"]);
    assert!(!success && text.contains("rank 1: the work of the rank panicked at "), "{text}");
    let (success, text) = faults(&["error"]);
    assert!(!success && text.contains("rank 1: no batch"), "{text}");
}

#[test]
fn rank_that_ends_early_ends_those_that_wait_for_it() {
    // A message that is sent immediately, and one that waits for its receiver.
    for bytes in ["8", "10000000"] {
        let (success, text) = faults(&["end", "--bytes", bytes]);
        let expected =
            "rank 1 has ended, but this rank waits for it: all ranks must run the same number of steps";
        assert!(!success && text.contains(expected), "{bytes} bytes: {text}");
    }
}

#[test]
fn deadline_is_an_option() {
    let (success, text) = faults(&["sleep", "--deadline", "300"]);
    assert!(!success && text.contains("has not answered within 300ms"), "{text}");
    for fault in ["sleep", "none"] {
        let (success, text) = faults(&[fault, "--deadline", "30000", "--bytes", "100000"]);
        assert!(success && text.matches("has ended\n").count() == 3, "{text}");
    }
}

#[test]
fn killed_rank_ends_all_ranks() {
    let start = Instant::now();
    let command =
        mpirun(2, "digits", &["--epochs", "100000"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
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

//! Results that are saved: also when standard output is closed or full, and when another result cannot be written.

use std::{
    fs::{self, File},
    io::{BufRead as _, BufReader},
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};

use serde_json::{Value, json};

const AUTOBWD: &str = env!("CARGO_BIN_EXE_autobwd");

/// A command in the folder of the examples.
fn command(arguments: &str) -> Command {
    let mut command = Command::new(AUTOBWD);
    command.current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cmd/commands.in"));
    command.args(arguments.split_whitespace()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// The status, and what is written to standard error.
fn outcome(output: &Output) -> (Option<i32>, String) {
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

/// A training program, which `run` takes with the arguments that are returned.
fn training(folder: &Path) -> String {
    let at = |name: &str| folder.join(name).display().to_string();
    let (program, adam) = (at("training.json"), at("adam.json"));
    let grad = format!("grad model.json --loss mean_0 --optimizer adam:0.01 --startup {adam} -o {program}");
    assert!(command(&grad).status().unwrap().success());
    format!("run {program} --startup startup.json --startup {adam} --feeds xor.npz --threads 1")
}

/// The number of values in a file of weights; none if there is no file.
fn values(path: &Path) -> Option<usize> {
    path.exists().then(|| autobwd::tensor::load_tensors(path).unwrap().len())
}

#[cfg(unix)]
#[test]
fn weights_are_saved_though_standard_output_is_closed_or_full() {
    let folder = tempfile::tempdir().unwrap();
    let run = training(folder.path());
    let [save, log, out] = ["w.safetensors", "run.jsonl", "out.npz"].map(|name| folder.path().join(name));
    let files = format!("--save {} --log {} --out {}", save.display(), log.display(), out.display());

    let mut child = command(&format!("{run} --steps 3000 {files}")).spawn().unwrap();
    let mut first = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut first).unwrap();
    assert!(first.contains("\"step\":1,"), "{first}");
    assert_eq!(outcome(&child.wait_with_output().unwrap()), (Some(0), String::new()));
    assert_eq!(values(&save), Some(21));
    assert!(out.exists());
    assert_eq!(fs::read_to_string(&log).unwrap().lines().count(), 3001);

    fs::remove_file(&save).unwrap();
    let full = Stdio::from(File::options().write(true).open("/dev/full").unwrap());
    let (status, error) =
        outcome(&command(&format!("{run} --steps 20 {files}")).stdout(full).output().unwrap());
    assert_eq!(status, Some(1));
    assert!(error.starts_with("autobwd: cannot write to standard output: "), "{error}");
    assert_eq!(values(&save), Some(21));

    // Without a file, a closed output ends the run.
    let mut child = command(&format!("{run} --steps 100000000")).spawn().unwrap();
    drop(child.stdout.take());
    assert_eq!(outcome(&child.wait_with_output().unwrap()), (Some(0), String::new()));
}

#[cfg(unix)]
#[test]
fn weights_are_saved_though_other_results_cannot_be_written() {
    let folder = tempfile::tempdir().unwrap();
    let run = training(folder.path());
    let save = folder.path().join("w.safetensors");
    let arguments = format!("{run} --steps 20 --out /dev/full --save {}", save.display());
    let (status, error) = outcome(&command(&arguments).output().unwrap());
    assert!(status == Some(1) && error.contains("cannot write `/dev/full`"), "{error}");
    assert_eq!(values(&save), Some(21));
    fs::remove_file(&save).unwrap();

    // The log becomes longer than a file may be; the weights do not.
    let log = folder.path().join("run.jsonl");
    let arguments = format!("{run} --steps 200 --log {} --save {}", log.display(), save.display());
    let mut limited = Command::new("sh");
    limited.args(["-c", "trap '' XFSZ; ulimit -f 8; exec \"$@\" > /dev/null", "sh", AUTOBWD]);
    limited.args(arguments.split_whitespace()).current_dir(command("").get_current_dir().unwrap());
    let (status, error) = outcome(&limited.output().unwrap());
    assert!(status == Some(1) && error.contains("cannot write the log"), "{error}");
    assert_eq!(values(&save), Some(21));
}

#[test]
fn step_that_fails_leaves_the_values_of_the_step_before() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).display().to_string();
    let (program, sgd, save, before, out) =
        (at("training.json"), at("sgd.json"), at("w.safetensors"), at("before.safetensors"), at("out.npz"));
    // Each step makes the weights larger, until they overflow.
    let grad = format!("grad model.json --loss mean_0 --optimizer sgd:1e6 --startup {sgd} -o {program}");
    assert!(command(&grad).status().unwrap().success());
    let run = format!(
        "run {program} --startup startup.json --startup {sgd} --feeds xor.npz --threads 1 --check-finite"
    );
    let arguments = format!("{run} --steps 1000 --save {save} --out {out}");
    let (status, error) = outcome(&command(&arguments).output().unwrap());
    assert_eq!(status, Some(1), "{error}");
    let step = error.lines().find_map(|line| line.strip_prefix("step ")?.strip_suffix(" has failed"));
    let step: u64 = step.unwrap_or_else(|| panic!("{error}")).parse().unwrap();
    assert!(step > 1, "{error}");
    let told = format!("`{save}` has the values after step {}\n`{out}` is not written: ", step - 1);
    assert!(error.contains(&told), "{error}");
    assert!(!Path::new(&out).exists());
    let arguments = format!("{run} --steps {} --save {before}", step - 1);
    assert!(command(&arguments).output().unwrap().status.success());
    assert_eq!(fs::read(&save).unwrap(), fs::read(&before).unwrap());

    // The first step.
    fs::remove_file(&save).unwrap();
    let (status, error) =
        outcome(&command(&format!("{run} --weights {before} --save {save}")).output().unwrap());
    assert_eq!(status, Some(1), "{error}");
    assert!(error.contains(&format!("`{save}` is not written: no step is complete")), "{error}");
    assert!(!Path::new(&save).exists());
}

#[test]
fn unwritable_files_are_refused_before_the_first_step() {
    let folder = tempfile::tempdir().unwrap();
    let run = training(folder.path());
    let at = |name: &str| folder.path().join(name);
    let before: Vec<PathBuf> = ["training.json", "adam.json"].map(at).into();
    let kept = |mut files: Vec<PathBuf>| {
        files.sort();
        files
    };
    let list = || fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
    let nowhere = at("no/file").display().to_string();
    let file = at("file").display().to_string();
    let grad = "grad model.json --loss mean_0 --optimizer adam:0.01";
    for (arguments, status) in [
        // This many steps would take days.
        (format!("{run} --steps 10000000000 --save {nowhere} --out {file}"), 1),
        (format!("{run} --steps 10000000000 --out {nowhere} --save {file}"), 1),
        (format!("{run} --steps 10000000000 --log {nowhere} --save {file}"), 1),
        (format!("{run} --steps 10000000000 --save {file} --out {file}"), 2),
        (format!("{run} --steps 10000000000 --save {file} --log {file}"), 2),
        (format!("{grad} --startup {nowhere} -o {file}"), 1),
        (format!("{grad} --startup {file} -o {nowhere}"), 1),
        (format!("{grad} --startup {file} -o {file}"), 2),
        (format!("convert model.json {file} --save {nowhere}"), 1),
        (format!("convert model.json {nowhere} --save {file}"), 1),
        (format!("convert model.json {file} --save {file}"), 2),
        (format!("report killed.jsonl -o {nowhere}"), 1),
    ] {
        let (code, error) = outcome(&command(&arguments).output().unwrap());
        assert_eq!(code, Some(status), "{arguments}: {error}");
        let expected = if status == 1 { "cannot write `" } else { " name one file, `" };
        assert!(error.contains(expected), "{arguments}: {error}");
        assert_eq!(kept(list()), kept(before.clone()), "{arguments}");
    }
}

#[test]
fn report_shows_what_a_replay_says_of_records() {
    let folder = tempfile::tempdir().unwrap();
    let run = training(folder.path());
    let at = |name: &str| folder.path().join(name).display().to_string();
    let [first, second, log, page] = ["first", "second", "first.jsonl", "page.html"].map(at);
    let record = format!("{run} --record-every 2 --checkpoint-every 3");
    for arguments in [
        format!("{record} --steps 7 --record {first} --log {log}"),
        format!("{record} --steps 6 --record {second}"),
    ] {
        assert_eq!(outcome(&command(&arguments).output().unwrap()), (Some(0), String::new()));
    }
    fs::remove_file(folder.path().join("second/checkpoint-3.safetensors")).unwrap();
    let report = |arguments: &str| -> Value {
        let report = format!("report {log} {first} {second} {arguments} -o {page}");
        assert_eq!(outcome(&command(&report).output().unwrap()), (Some(0), String::new()));
        let html = fs::read_to_string(&page).unwrap();
        let data = html.split_once("id=\"data\">").unwrap().1.split_once("</script>").unwrap().0;
        serde_json::from_str(data).unwrap()
    };
    let data = report("");
    assert_eq!((&data["runs"][0]["name"], &data["records"][0]["name"]), (&json!("first"), &json!("first")));
    assert_eq!(data["records"][0]["segments"], json!([]));
    assert_eq!(data["records"][1]["checkpoints"], json!([[0, true], [3, false], [6, true]]));
    let missing = "`checkpoint-3.safetensors` is missing: no segment starts after step 3";
    assert_eq!(data["records"][1]["warnings"], json!([missing]));
    let difference = &data["differences"][0];
    assert_eq!(difference["sentences"], json!(["the first run alone has step 7"]));
    assert_eq!((&difference["last_equal_state"], &difference["bisection"]), (&json!(6), &json!("")));

    let data = report("--verify --segments 2 --seed 1 --bisect --threads 1");
    let segments = |record: usize| data["records"][record]["segments"].as_array().unwrap().clone();
    assert_eq!((segments(0).len(), segments(1).len()), (2, 1));
    assert_eq!(
        segments(1),
        [json!({ "after": 0, "last": 6, "verdict": "confirmed", "text": "steps 1 to 6: confirmed" })]
    );
    assert_eq!(data["records"][0]["facts"][3], json!(["seed of the choice", "1"]));
    let bisection = data["differences"][0]["bisection"].as_str().unwrap();
    assert!(bisection.contains("the runs agree in all 5 states"), "{bisection}");
}

#[cfg(unix)]
#[test]
fn help_that_cannot_be_written_is_a_failure() {
    let full = Stdio::from(File::options().write(true).open("/dev/full").unwrap());
    let (status, error) = outcome(&command("run --help").stdout(full).output().unwrap());
    assert!(status == Some(1) && error.contains("cannot write to standard output"), "{error}");
}

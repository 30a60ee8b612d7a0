//! Every command, by example: `cmd/commands.md` and `cmd/mistakes.md`.
//!
//! `TRYCMD=overwrite cargo test -p autobwd-cli` writes what the commands say now.

mod published;

use std::{
    fs::{self, File},
    io::Write as _,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};

use autobwd::{Builder, DType, Executor, Tensor, tensor::Dim};
use autobwd_models::Pretrained;
use autobwd_ops::{Math as _, optim::OptimizerSpec};
use serde_json::Value;
use trycmd::{TestCases, schema::Bin};

const AUTOBWD: &str = env!("CARGO_BIN_EXE_autobwd");

#[test]
fn commands_say_what_the_examples_show() {
    let cases = TestCases::new();
    cases.register_bin("autobwd", Bin::Path(AUTOBWD.into()));
    // `cargo test` builds the examples, unless it is to build this test alone.
    let own = Path::new(AUTOBWD)
        .with_file_name("examples")
        .join("own_operators")
        .with_extension(std::env::consts::EXE_EXTENSION);
    cases.register_bin("own-operators", if own.exists() { Bin::Path(own) } else { Bin::Ignore });
    cases.case("tests/cmd/*.md").case("tests/cmd/*.toml");
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn every_operator_is_described() {
    let ops = |arguments: &[&str]| {
        let output = Command::new(AUTOBWD).arg("ops").args(arguments).output().unwrap();
        assert!(output.status.success(), "{arguments:?}: {}", stderr(&output));
        output.stdout
    };
    let all: Value = serde_json::from_slice(&ops(&["--gradients", "--format", "json"])).unwrap();
    let all = all["operators"].as_array().unwrap();
    assert!(all.len() > 400, "{}", all.len());
    for operator in all {
        let name = operator["name"].as_str().unwrap();
        assert!(String::from_utf8(ops(&[name])).unwrap().contains(name), "{name}");
    }
    let composed = |name: &str| all.iter().any(|op| op["name"] == name && op["composition"].is_array());
    for name in ["grid_sampler", "nll_loss", "softmax"] {
        assert!(composed(name), "{name}");
    }
}

#[test]
fn endless_input_fails_before_it_fills_the_memory() {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("huge.json");
    // Occupies no space.
    File::create(&path).and_then(|file| file.set_len(1 << 32)).unwrap();
    let output = Command::new(AUTOBWD).arg("show").arg(&path).output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
    assert!(stderr(&output).contains("longer than the"), "{}", stderr(&output));

    let (input, out) = (Stdio::piped(), Stdio::piped());
    let mut child = Command::new(AUTOBWD).args(["show", "-"]).stdin(input).stderr(out).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let brackets = vec![b'['; 1 << 20];
    let written = (0..1 << 10).take_while(|_| stdin.write_all(&brackets).is_ok()).count();
    drop(stdin);
    let output = child.wait_with_output().unwrap();
    assert!(written < 1 << 9, "{written} MiB are read");
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
}

#[cfg(unix)]
#[test]
fn pipes_and_devices_are_refused_in_place_of_files() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let (pipe, program) = (folder.join("pipe"), folder.join("empty.json"));
    _ = fs::remove_file(&pipe);
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    fs::write(&program, r#"{"blocks":[{"idx":0,"parent_idx":-1,"vars":[],"ops":[]}]}"#).unwrap();
    let (pipe, program) = (pipe.to_str().unwrap(), program.to_str().unwrap());
    let zeros = "/dev/zero";
    for arguments in [
        &["run", program, "--weights", zeros][..],
        &["run", program, "--weights", pipe],
        &["run", program, "--startup", pipe],
        &["run", program, "--feeds", pipe],
        &["report", pipe, "-o", "page.html"],
        &["report", zeros, "-o", "page.html"],
        &["show", pipe],
    ] {
        let output = Command::new(AUTOBWD).args(arguments).current_dir(folder).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {}", stderr(&output));
        assert!(stderr(&output).contains("it is a pipe or a device, not a file"), "{}", stderr(&output));
    }
}

#[test]
fn help_of_grad_lists_all_optimizers() {
    let output = Command::new(AUTOBWD).args(["grad", "--help"]).output().unwrap();
    let help = String::from_utf8(output.stdout).unwrap().split_whitespace().collect::<Vec<_>>().join(" ");
    for name in OptimizerSpec::names() {
        let options: Vec<String> = OptimizerSpec::options(name).map(|(key, _)| format!("`{key}`")).collect();
        let options = if options.is_empty() { String::new() } else { format!(" ({})", options.join(", ")) };
        assert!(help.contains(&format!("`{name}`{options}")), "{name}: {help}");
    }
}

#[test]
fn gradients_need_parameters_that_are_not_folded() {
    let input = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cmd/onnx.in");
    let output = Path::new(env!("CARGO_TARGET_TMPDIR")).join("folded.json");
    for train in [&[][..], &["--train"]] {
        let mut command = Command::new(AUTOBWD);
        command.current_dir(&input).args("grad images.onnx --inference --loss features -o".split(' '));
        let found = command.arg(&output).args(train).output().unwrap();
        let expected =
            "autobwd: `--inference` makes constants of parameters, which have no gradients: leave it out\n";
        assert_eq!((found.status.code(), stderr(&found).as_str()), (Some(2), expected));
    }
}

/// A frozen program has nearly the results of the program as it is written, and the same bits for any number of threads.
#[test]
fn programs_are_frozen_unless_their_bits_are_wanted() {
    let input = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cmd/onnx.in");
    let folder = tempfile::tempdir().unwrap();
    let run = |options: &str| {
        let path = folder.path().join("out.npz");
        let mut command = Command::new(AUTOBWD);
        command.current_dir(&input).arg("run").args(options.split_whitespace()).args([
            "--feeds",
            "images.npz",
            "--out",
        ]);
        let output = command.arg(&path).output().unwrap();
        assert!(output.status.success(), "{options}: {}", stderr(&output));
        autobwd_data::load_npz(&path).unwrap()
    };
    for fetch in ["scores", "relu,features,scores", "norm,batch_norm_1,scores", "scores,head.weight"] {
        let exact = run(&format!("images.onnx --exact --threads 1 --fetch {fetch}"));
        assert_eq!(exact, run(&format!("images.onnx --exact --threads 2 --fetch {fetch}")), "{fetch}");
        // What else is asked for keeps the operators.
        assert_eq!(exact, run(&format!("images.onnx --check-finite --fetch {fetch}")), "{fetch}");
        let frozen = run(&format!("images.onnx --threads 1 --fetch {fetch}"));
        assert_eq!(frozen, run(&format!("images.onnx --threads 2 --fetch {fetch}")), "{fetch}");
        assert_eq!(exact.len(), fetch.split(',').count(), "{fetch}");
        for ((name, exact), (frozen_name, frozen)) in exact.iter().zip(&frozen) {
            assert_eq!((name, exact.dims()), (frozen_name, frozen.dims()));
            let pairs = exact.to_f64s().into_iter().zip(frozen.to_f64s());
            assert!(pairs.into_iter().all(|(x, y)| (x - y).abs() <= 1e-5 * x.abs().max(1.0)), "{name}");
        }
    }
    let relu = |options: &str| run(&format!("images.onnx --threads 1 --fetch relu {options}"));
    assert_ne!(relu(""), relu("--exact"), "the convolution and its normalisation are two roundings less");
}

#[test]
fn element_counts_beyond_the_largest_integer_are_reported() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let (program, output) = (folder.join("large.json"), folder.join("large_gradients.json"));
    let var = |name: &str, dim: u64, parameter: bool| {
        format!(
            r#"{{"name":"{name}","type":"lod_tensor","dtype":"float32","shape":[{dim}],"persistable":{parameter},"stop_gradient":false,"is_parameter":{parameter}}}"#
        )
    };
    let large = ["a", "b", "c"].map(|name| var(name, i64::MAX as u64, true));
    let vars = [var("w", 1, true), var("loss", 1, false)].iter().chain(&large).cloned().collect::<Vec<_>>();
    let op = r#"{"type":"tanh","inputs":{"X":["w"]},"outputs":{"Out":["loss"]},"attrs":{}}"#;
    let text =
        format!(r#"{{"blocks":[{{"idx":0,"parent_idx":-1,"vars":[{}],"ops":[{op}]}}]}}"#, vars.join(","));
    fs::write(&program, text).unwrap();
    let mut command = Command::new(AUTOBWD);
    command.args(["grad", "--loss", "loss", "--freeze", "a", "--freeze", "b", "--freeze", "c"]);
    let found = command.arg(&program).arg("-o").arg(&output).output().unwrap();
    assert!(found.status.success(), "{}", stderr(&found));
    let expected = "frozen: 3 parameters of 18,446,744,073,709,551,615 elements: ";
    assert!(stderr(&found).contains(expected), "{}", stderr(&found));
}

#[test]
fn closed_reader_is_no_failure() {
    let out = || Stdio::piped();
    let mut child = Command::new(AUTOBWD).arg("ops").stdout(out()).stderr(out()).spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), stderr(&output).as_str()), (Some(0), ""));
}

#[test]
fn step_of_an_optimizer_is_written_with_its_values() {
    let input = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cmd/commands.in");
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let path = |name: &str| folder.join(name).display().to_string();
    let run = |command: &str| {
        let arguments = command.split(' ').map(|word| match word.strip_prefix("out:") {
            Some(name) => path(name),
            None => word.to_string(),
        });
        let output = Command::new(AUTOBWD).current_dir(&input).args(arguments).output().unwrap();
        assert!(output.status.success(), "{command}: {}", stderr(&output));
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        text.lines().last().map(|line| serde_json::from_str::<Value>(line).unwrap_or_default())
    };
    run("run model.json --startup startup.json --feeds xor.npz --threads 1 --save out:step.safetensors");
    run("convert model.json out:model.onnx --weights out:step.safetensors");
    run(
        "grad out:model.onnx --shape x=4,2 --shape y=4,1 --loss mean_0 --train --optimizer adam:0.1 -o out:step.onnx",
    );
    run("grad model.json --loss mean_0 --optimizer adam:0.1 --startup out:adam.json -o out:step.json");
    let steps = "--feeds xor.npz --fetch mean_0 --steps 20 --threads 1";
    let written = run(&format!("run out:step.onnx {steps}")).unwrap();
    let known =
        run(&format!("run out:step.json --weights out:step.safetensors --startup out:adam.json {steps}"))
            .unwrap();
    let loss = |value: &Value| value["fetched"]["mean_0"]["value"].as_f64().unwrap();
    assert!((loss(&written) - loss(&known)).abs() < 1e-5, "{written}, not {known}");

    // Without an optimizer, the gradients are results; the shapes that reshapes remember are none.
    run("grad out:model.onnx --shape x=4,2 --shape y=4,1 --loss mean_0 --train -o out:gradients.onnx");
    let gradients = run("run out:gradients.onnx --feeds xor.npz --threads 1").unwrap();
    assert!(gradients["fetched"].as_object().unwrap().len() > 1, "{gradients}");
}

/// The folder of a tiny published model.
fn published(family: &str) -> String {
    format!("{}/../models/tests/fixtures/{family}", env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn published_models_are_programs() {
    for family in ["llama", "whisper", "qwen2/model.f16.gguf"] {
        let output = Command::new(AUTOBWD).args(["show", &published(family)]).output().unwrap();
        assert!(output.status.success(), "{family}: {}", stderr(&output));
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(text.contains("matmul_v2") && text.contains("-> (logits: float32 [-1, -1, 288])"), "{text}");
    }
    let output = Command::new(AUTOBWD)
        .args(["plan", &published("gpt2"), "--shape", "input_ids=1,8", "--budget", "1KB"])
        .output()
        .unwrap();
    assert!(!output.status.success());
    assert!(stderr(&output).contains("the budget of 1000 bytes is exceeded"), "{}", stderr(&output));
    let output = Command::new(AUTOBWD).args(["show", env!("CARGO_MANIFEST_DIR")]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("it is a folder"), "{}", stderr(&output));
}

#[test]
fn published_models_become_files_of_onnx() {
    let folder = tempfile::tempdir().unwrap();
    let ids = |dims: [usize; 2]| {
        let ids = (0..dims[0] * dims[1]).map(|i| (i * 7 + 3) as i64 % 80).collect();
        Tensor::from_vec(dims, ids).unwrap()
    };
    let is_model = |entry: &PathBuf| entry.join("config.json").is_file();
    let entries = fs::read_dir(published("")).unwrap().map(|entry| entry.unwrap().path());
    let families: Vec<PathBuf> = entries.filter(is_model).collect();
    assert_eq!(families.len(), 13);
    for published in families {
        let family = published.file_name().unwrap().to_string_lossy().into_owned();
        let path = folder.path().join(format!("{family}.onnx"));
        let output = Command::new(AUTOBWD).arg("convert").arg(&published).arg(&path).output().unwrap();
        assert!(output.status.success(), "{family}: {}", stderr(&output));
        let mut models = [Pretrained::open(&published).load().unwrap(), autobwd_onnx::load(&path).unwrap()];
        let numbers = |dims: &[usize]| {
            let count = dims.iter().product::<usize>();
            Tensor::from_vec(dims, (0..count).map(|i| (i % 13) as f32 / 13.0).collect()).unwrap()
        };
        let inputs: Vec<Tensor> = models[0]
            .feeds
            .iter()
            .map(|name| match name.as_str() {
                "pixel_values" => numbers(&[2, 3, 16, 16]),
                "input_features" => numbers(&[2, 16, 100]),
                _ => ids([2, 9]),
            })
            .collect();
        let inputs: Vec<&Tensor> = inputs.iter().collect();
        let [own, read] = models.each_mut().map(|model| model.run(&mut Executor::new(), &inputs).unwrap());
        for (own, read) in own.iter().zip(&read) {
            assert_eq!(own.dims(), read.dims(), "{family}");
            for (own, read) in own.slice::<f32>().unwrap().iter().zip(read.slice::<f32>().unwrap()) {
                assert!((own - read).abs() < 1e-4, "{family}: {own} for {read}");
            }
        }
    }
}

/// The work of an operator is unknown if its shape rule does not know the shape, even if the program names it.
#[test]
fn shapes_of_inputs_give_sizes_to_names() {
    let net = Builder::new();
    let x = net.input_with_dims("x", DType::F32, vec![Dim::named("batch"), 4.into()]);
    let rows = autobwd_ops::positions(&net, &x.dim(0));
    assert_eq!((x.exp() + 1.0).dims().to_string(), "[batch, 4]");
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("model.json"), net.program().unwrap().to_json()).unwrap();
    let show = Command::new(AUTOBWD)
        .current_dir(folder.path())
        .args(["show", "model.json", "--shape", "x=3,4"])
        .output()
        .unwrap();
    let text = String::from_utf8(show.stdout).unwrap();
    let row = |name: &str| text.lines().find(|line| line.contains(name)).unwrap().to_string();
    assert!(row(&rows.name()).contains("int64 [3]") && row(&rows.name()).ends_with('?'), "{text}");
    assert!(row("exp").contains("float32 [3, 4]") && row("exp").ends_with("96"), "{text}");
    assert!(row("unknown").contains("the work of 1 operators"), "{text}");
}

/// A record has the same bytes, and is confirmed, with each instruction set and number of threads.
#[test]
fn record_does_not_depend_on_the_machine() {
    let folder = tempfile::tempdir().unwrap();
    let path = |file: &str| folder.path().join(file).to_str().unwrap().to_string();
    let [training, adam] = [path("training.json"), path("adam.json")];
    let (model, startup, batch) = (
        "tests/cmd/digits.in/model.json",
        "tests/cmd/digits.in/startup.json",
        "tests/cmd/digits.in/batch.npz",
    );
    let succeed = |isa: &str, arguments: &[&str]| {
        let output = Command::new(AUTOBWD).env("AUTOBWD_ISA", isa).args(arguments).output().unwrap();
        assert!(output.status.success(), "{arguments:?}: {}", stderr(&output));
    };
    succeed(
        "",
        &["grad", model, "--loss", "mean_0", "--optimizer", "adam:0.01", "--startup", &adam, "-o", &training],
    );
    let machines = [("", "1"), ("", "2"), ("avx2", "1"), ("baseline", "2")];
    let run = ["run", &training, "--startup", startup, "--startup", &adam, "--feeds", batch, "--steps", "4"];
    for (isa, threads) in machines {
        let record = path(&format!("{isa}{threads}"));
        let options =
            ["--threads", threads, "--record", &record, "--record-every", "1", "--checkpoint-every", "2"];
        succeed(isa, &[&run[..], &options].concat());
    }
    for (isa, threads) in machines {
        let (first, record) = (path("1"), path(&format!("{isa}{threads}")));
        let [a, b] =
            [&first, &record].map(|record| fs::read(Path::new(record).join("record.jsonl")).unwrap());
        assert!(a == b, "{isa}, {threads} threads");
        succeed(isa, &["verify-run", &first, "--threads", threads]);
    }
}

//! The libraries: installation and start command of each.

use std::{
    collections::BTreeMap,
    env,
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use autobwd_benches::{BenchResult, output};

/// autobwd first.
pub(crate) const LIBRARIES: [&str; 7] =
    ["autobwd", "JAX", "PyTorch", "PyTorch, compiled", "burn", "dfdx", "candle"];

/// A program and its first arguments; those that select the workload follow.
pub(crate) type Start = Vec<OsString>;

/// Builds and installs missing libraries (for autobwd the command `ours`); omits those that cannot be installed.
pub(crate) fn install(root: &Path, ours: &str, libraries: &[&'static str]) -> BTreeMap<&'static str, Start> {
    let python = python(root);
    let python = |args: &[&str]| -> BenchResult<Start> {
        let python = python.as_ref().map_err(ToString::to_string)?;
        Ok([python.into()].into_iter().chain(args.iter().map(Into::into)).collect())
    };
    let mut starts = BTreeMap::new();
    for &library in libraries {
        let start = match library {
            "autobwd" => autobwd(root, ours),
            "JAX" => python(&["benches/peers/jax_peer.py"]),
            "PyTorch" => python(&["benches/peers/torch_peer.py", "eager"]),
            "PyTorch, compiled" => python(&["benches/peers/torch_peer.py", "compile"]),
            _ => rust(root, library),
        };
        match start {
            Ok(start) => _ = starts.insert(library, start),
            Err(e) => eprintln!("{library} is left out: {e}"),
        }
    }
    starts
}

fn cargo(root: &Path) -> Command {
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(root).args(["build", "--release", "--quiet"]);
    cargo
}

/// A command of this package, in the same folder as this one.
fn autobwd(root: &Path, name: &str) -> BenchResult<Start> {
    output(cargo(root).args(["-p", "autobwd-benches", "--bin", name]))?;
    Ok(vec![env::current_exe()?.with_file_name(name).into()])
}

/// A peer of the workspace `rust`, built with its own library only.
fn rust(root: &Path, library: &str) -> BenchResult<Start> {
    let (target, name) = (root.join("target/peers/rust"), format!("{library}_peer"));
    eprintln!("building {library} in {}", target.display());
    let manifest = ["--locked", "--manifest-path", "benches/peers/rust/Cargo.toml"];
    output(
        cargo(root).args(manifest).args(["--features", library, "--bin", &name, "--target-dir"]).arg(&target),
    )?;
    Ok(vec![target.join("release").join(name).into()])
}

/// The interpreter of the Python peers, which are installed once.
fn python(root: &Path) -> BenchResult<PathBuf> {
    let venv = root.join("target/peers/venv");
    let (python, done) = (venv.join("bin/python"), venv.join("installed"));
    if !done.exists() {
        eprintln!("installing into {}", venv.display());
        output(Command::new("python3").args(["-m", "venv"]).arg(&venv))?;
        let requirements = root.join("benches/peers/requirements.txt");
        output(Command::new(&python).args(["-m", "pip", "install", "--quiet", "-r"]).arg(requirements))?;
        fs::write(done, "")?;
    }
    Ok(python)
}

/// The command that runs on `threads` threads. A single thread is pinned to one core, since some libraries ignore their
/// limit.
pub(crate) fn command(start: &Start, arguments: &[&str], threads: usize) -> Command {
    let pinned = threads == 1 && Command::new("taskset").arg("--version").output().is_ok();
    let mut command = Command::new(if pinned { "taskset".into() } else { start[0].clone() });
    if pinned {
        command.args(["-c", "0"]).arg(&start[0]);
    }
    command.args(&start[1..]).args(arguments);
    command.env("THREADS", threads.to_string()).env("RAYON_NUM_THREADS", threads.to_string());
    command
}

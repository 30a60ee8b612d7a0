//! Saved files are complete even after a kill.

use std::{
    fs,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use autobwd::{OpDesc, Program, Result, Scope, Tensor, tensor::load_tensors};

use crate::child;

fn names_in(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<_> = entries.collect();
    names.sort();
    names
}

fn filled(value: f32) -> Result<Scope> {
    let mut scope = Scope::new();
    scope.set("w", Tensor::from_vec([200_000], vec![value; 200_000])?);
    Ok(scope)
}

/// The child process that saves until it is killed.
pub(crate) fn save_in_a_loop(folder: &Path) -> Result<()> {
    let scopes = [filled(1.0)?, filled(2.0)?];
    let programs = [1, 3000].map(|count| {
        let mut program = Program::new();
        program.root_mut().ops.extend((0..count).map(|_| OpDesc::new("tanh")));
        program
    });
    for i in 0.. {
        scopes[i % 2].save(folder.join("w.safetensors"))?;
        programs[i % 2].save(folder.join("p.json"))?;
    }
    Ok(())
}

pub(crate) fn killed_process_leaves_whole_files() -> Result<()> {
    let folder = tempfile::tempdir().unwrap();
    let (weights, program) = (folder.path().join("w.safetensors"), folder.path().join("p.json"));
    let mut left = 0;
    for round in 0..25 {
        let mut child = child("save").arg(folder.path()).spawn().unwrap();
        let start = Instant::now();
        while !program.exists() {
            assert!(start.elapsed() < Duration::from_secs(60), "the child saves nothing");
            thread::sleep(Duration::from_millis(1));
        }
        thread::sleep(Duration::from_micros(20_000 + round * 1_370));
        child.kill().unwrap();
        child.wait().unwrap();
        let values = load_tensors(&weights)?.remove(0).1.to_f64s();
        assert!(values.len() == 200_000 && values.iter().all(|x| *x == values[0]), "round {round}");
        let count = Program::load(&program)?.root().ops.len();
        assert!(count == 1 || count == 3000, "round {round}");
        left = left.max(names_in(folder.path()).len());
    }
    assert!(left <= 4, "each target has one temporary file at most");
    filled(3.0)?.save(&weights)?;
    Program::new().save(&program)?;
    assert_eq!(names_in(folder.path()), ["p.json", "w.safetensors"]);
    Ok(())
}

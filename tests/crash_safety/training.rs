//! Training runs that are killed at random moments and resumed end in the bits of an unbroken run; a full disk leaves
//! the last checkpoint.
//!
//! `KILLS=200 cargo test -p autobwd-tests --test crash_safety killed` kills more often than the tests do.

use std::{
    env, fs,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use autobwd::{Builder, DType, ErrorKind, Executor, Expr, Result, Scope, Tensor, exec::Checkpoint};
use autobwd_data::{Loader, TensorDataset};
use autobwd_ops::{
    Math,
    nn::{Dropout, Linear},
    optim::{Adam, Optimizer},
};

use crate::child;

/// The number of kills, instead of 20.
const KILLS: &str = "KILLS";

fn network() -> Result<(Builder, Expr)> {
    let net = Builder::new();
    let (x, y) = (net.input("x", DType::F32, &[-1, 8]), net.input("y", DType::I64, &[-1, 1]));
    let hidden = Linear::builder(&net, 8, 32).build().forward(&x).relu();
    let hidden = Dropout::new(&net, 0.2, 1).forward(&hidden);
    let loss = Linear::builder(&net, 32, 3).build().forward(&hidden).cross_entropy(&y).mean();
    Adam::new(0.01).minimize(&loss)?.complete()?;
    Ok((net, loss))
}

fn data() -> Result<TensorDataset> {
    let x = (0..100 * 8).map(|k| (k * 37 % 101) as f32 / 101.0).collect();
    let y = (0..100).map(|k| k * 7 % 3).collect::<Vec<i64>>();
    TensorDataset::new([("x", Tensor::from_vec([100, 8], x)?), ("y", Tensor::from_vec([100, 1], y)?)])
}

/// Trains, or goes on with the checkpoint, until `steps` steps are done; saves each of them. A child process does so until
/// it is killed.
pub(crate) fn train(path: &Path, steps: u64, threads: usize) -> Result<()> {
    let (net, _) = network()?;
    let (program, mut executor, mut scope) = (net.program()?, Executor::with_threads(threads), Scope::new());
    // The last of the 7 batches of an epoch is smaller.
    let mut loader = Loader::builder(data()?).batch(16).shuffle(5).prefetch(threads - 1).build()?;
    let mut step = 0;
    if path.exists() {
        let checkpoint = Checkpoint::load(path, &program, &mut scope)?;
        loader.resume(checkpoint.note("data")?)?;
        step = checkpoint.step();
    } else {
        executor.run(&net.startup().program()?, &mut scope, &[], &[])?;
    }
    while step < steps {
        let Some(batch) = loader.next_batch()? else { continue };
        executor.run(&program, &mut scope, &batch.feeds(), &[])?;
        step += 1;
        Checkpoint::new(step).with_note("data", loader.state()).save(path, &program, &scope)?;
    }
    Ok(())
}

pub(crate) fn killed_runs_end_bit_identical_to_an_unbroken_run() -> Result<()> {
    let kills: usize = env::var(KILLS).map_or(20, |text| text.parse().unwrap());
    let folder = tempfile::tempdir().unwrap();
    let [unbroken, killed] = ["unbroken", "killed"].map(|name| {
        fs::create_dir(folder.path().join(name)).unwrap();
        folder.path().join(name).join("run.checkpoint")
    });
    let mut state = 1_u64;
    let mut random = |n: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % n
    };
    let train_in_child = |round: usize, steps: u64| {
        let threads = 1 + round % 3;
        child("train").arg(&killed).args([steps.to_string(), threads.to_string()]).spawn().unwrap()
    };
    let files = || fs::read_dir(killed.parent().unwrap()).unwrap().count();
    let mut leftovers = 0;
    for round in 0..kills {
        let (before, start) = (fs::read(&killed).ok(), Instant::now());
        let mut child = train_in_child(round, u64::MAX);
        // Every fourth is killed while it starts, the others during the steps after their first.
        while round % 4 != 0 && fs::read(&killed).ok() == before {
            assert!(child.try_wait().unwrap().is_none(), "a resumed run fails");
            assert!(start.elapsed() < Duration::from_secs(60), "the child saves nothing");
            thread::sleep(Duration::from_micros(200));
        }
        thread::sleep(Duration::from_micros(random(100_000)));
        child.kill().unwrap();
        assert!(child.wait().unwrap().code().is_none(), "a resumed run fails");
        leftovers += files() - usize::from(killed.exists());
    }
    let (net, _) = network()?;
    let steps = Checkpoint::load(&killed, &net.program()?, &mut Scope::new())?.step() + 5;
    assert!(train_in_child(kills, steps).wait().unwrap().success());
    train(&unbroken, steps, 1)?;
    println!("{kills} kills in {steps} steps, {leftovers} temporary files left");
    assert!(fs::read(&killed).unwrap() == fs::read(&unbroken).unwrap(), "the runs end in different bits");
    assert_eq!(files(), 1, "temporary files are left");
    Ok(())
}

/// The child process that may write small files only.
pub(crate) fn save_to_a_full_disk(path: &Path) -> Result<()> {
    let (net, _) = network()?;
    let mut scope = Scope::new();
    Executor::new().run(&net.startup().program()?, &mut scope, &[], &[])?;
    let e = Checkpoint::new(2).save(path, &net.program()?, &scope).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Io);
    assert!(e.to_string().starts_with(&format!("cannot write `{}`: ", path.display())), "{e}");
    Ok(())
}

#[cfg(unix)]
pub(crate) fn full_disk_leaves_the_last_checkpoint() -> Result<()> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.checkpoint");
    let (net, _) = network()?;
    let mut scope = Scope::new();
    Executor::new().run(&net.startup().program()?, &mut scope, &[], &[])?;
    Checkpoint::new(1).save(&path, &net.program()?, &scope)?;
    let before = fs::read(&path).unwrap();
    assert!(before.len() > 5000);
    // Writing fails after 4,096 bytes.
    let mut limited = std::process::Command::new("sh");
    let child = child("fill-disk");
    limited.args(["-c", "trap '' XFSZ && ulimit -f 8 && exec \"$0\" \"$@\""]);
    limited.arg(child.get_program()).args(child.get_args()).arg(&path);
    let output = limited.output().unwrap();
    let [text, errors] = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes));
    assert!(output.status.success(), "{text}{errors}");
    assert_eq!(fs::read(&path).unwrap(), before);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "a temporary file is left");
    Ok(())
}

pub(crate) fn changed_data_is_noticed() -> Result<()> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.checkpoint");
    train(&path, 9, 1)?;
    let (net, _) = network()?;
    let checkpoint = Checkpoint::load(&path, &net.program()?, &mut Scope::new())?;
    let loader = |data: TensorDataset| Loader::builder(data).batch(16).shuffle(5).build();
    let mut same = loader(data()?)?;
    same.resume(checkpoint.note("data")?)?;
    assert_eq!(same.position().to_string(), "epoch 1, batch 2");
    let [x, y] =
        ["x", "y"].map(|name| Tensor::from_vec([100, 1], vec![0_i64; 100]).map(|zeros| (name, zeros)));
    let e = loader(TensorDataset::new([x?, y?])?)?.resume(checkpoint.note("data")?).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Checkpoint);
    assert_eq!(
        e.to_string(),
        "the data have changed: the fields were `x` (float32), `y` (int64), and are `x` (int64), `y` (int64)"
    );
    Ok(())
}

//! What subscribers of `tracing` see.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use autobwd::{Builder, DType, Executor, Program, Scope, Tensor, exec::Checkpoint};
use autobwd_ops::{
    Init, Math,
    optim::{Optimizer, Sgd},
};
use tracing::{Event, Subscriber, field::Visit, span};
use tracing_subscriber::{Layer, layer::Context, prelude::*, registry::LookupSpan};

/// Runs tests one after another. `tracing` keeps one answer for a place in the code, for all threads: a test that gets
/// there first, and has no subscriber, would switch the place off for the others.
fn one_at_a_time() -> MutexGuard<'static, ()> {
    static RUNNING: Mutex<()> = Mutex::new(());
    RUNNING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Collects the names of spans, each after the names of the spans around it, and the texts of events.
#[derive(Clone, Debug, Default)]
struct Collector(Arc<Mutex<Vec<String>>>);

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Collector {
    fn on_new_span(&self, _: &span::Attributes<'_>, id: &span::Id, context: Context<'_, S>) {
        let scope = context.span_scope(id).expect("the span is new");
        let names: Vec<&str> = scope.from_root().map(|span| span.name()).collect();
        self.0.lock().unwrap().push(names.join("/"));
    }

    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        struct Message(String);
        impl Visit for Message {
            fn record_debug(&mut self, _: &tracing::field::Field, value: &dyn std::fmt::Debug) {
                self.0 = format!("{value:?}");
            }
        }
        let mut message = Message(String::new());
        event.record(&mut message);
        self.0.lock().unwrap().push(message.0);
    }
}

impl Collector {
    /// What a function does, seen from outside.
    fn names(function: impl FnOnce() -> autobwd::Result<()>) -> Vec<String> {
        let collector = Collector::default();
        let subscriber = tracing_subscriber::registry().with(collector.clone());
        tracing::subscriber::with_default(subscriber, function).unwrap();
        std::mem::take(&mut collector.0.lock().unwrap())
    }
}

#[test]
fn steps_of_a_training_run_are_spans() {
    let _running = one_at_a_time();
    let folder = tempfile::tempdir().unwrap();
    let path = |file: &str| folder.path().join(file);
    let net = Builder::new();
    let w = net.parameter("w", DType::F32, &[2], |w| Init::Constant(3.0).emit(w, 0));
    let loss = (net.input("x", DType::F32, &[-1, 2]) * &w).square().mean();

    let built = Collector::names(|| Sgd { rate: 0.1 }.minimize(&loss)?.complete().map(drop));
    assert!(built.contains(&"append_backward".into()) && built.contains(&"append_backward/verify".into()));

    let (mut executor, mut scope) = (Executor::new(), Scope::new());
    executor.run(&net.startup().program().unwrap(), &mut scope, &[], &[]).unwrap();
    let program = net.program().unwrap();
    let x = Tensor::from_vec([1, 2], vec![1.0_f32, 2.0]).unwrap();
    let ran = Collector::names(|| {
        for _ in 0..3 {
            executor.run(&program, &mut scope, &[("x", &x)], &[&loss.name()])?;
        }
        Ok(())
    });
    let (prepared, runs) = ran.split_at(ran.len() - 3);
    assert_eq!(
        prepared.iter().filter(|name| *name != "prepare/verify").collect::<Vec<_>>(),
        ["prepare", "prepare/plan"]
    );
    assert_eq!(runs, ["run"; 3]);

    let saved = Collector::names(|| {
        program.save(path("program.json"))?;
        Checkpoint::new(3).save(path("run.checkpoint"), &program, &scope)
    });
    assert_eq!(saved, ["save_checkpoint", "save_checkpoint/save_tensors"]);
    let loaded = Collector::names(|| {
        let program = Program::load(path("program.json"))?;
        Checkpoint::load(path("run.checkpoint"), &program, &mut Scope::new()).map(drop)
    });
    assert_eq!(loaded, ["load_program", "load_checkpoint", "load_checkpoint/load_tensors"]);
}

#[test]
fn warning_of_a_checkpoint_is_an_event() {
    let _running = one_at_a_time();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.checkpoint");
    let net = Builder::new();
    net.parameter("w", DType::F32, &[2], |w| Init::Constant(3.0).emit(w, 0)).square();
    let (program, mut scope) = (net.program().unwrap(), Scope::new());
    Executor::new().run(&net.startup().program().unwrap(), &mut scope, &[], &[]).unwrap();
    Checkpoint::new(3).save(&path, &program, &scope).unwrap();
    // As version 1 wrote it, and without its checksum.
    let replace = |bytes: &mut [u8], from: &str, to: &str| {
        let at = bytes.windows(from.len()).position(|window| window == from.as_bytes()).unwrap();
        bytes[at..at + to.len()].copy_from_slice(to.as_bytes());
    };
    let mut bytes = std::fs::read(&path).unwrap();
    replace(&mut bytes, &format!("arithmetic\\\":{}", autobwd::exec::ARITHMETIC_VERSION), "arithmetic\\\":1");
    replace(&mut bytes, "\"autobwd.checksum\":\"xxh3:", "\"removed.checksum\":\"none:");
    std::fs::write(&path, bytes).unwrap();

    let seen = Collector::names(|| Checkpoint::load(&path, &program, &mut Scope::new()).map(drop));
    let warning = seen.last().unwrap();
    assert!(warning.starts_with("the checkpoint was written with version 1 of the arithmetic"), "{seen:?}");
}

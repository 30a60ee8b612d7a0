//! The classifier: the columns of its table, its layers, and its training.

use std::path::Path;

use autobwd::{Builder, DType, Executor, Expr, Feed, Result, Scope, exec::Monitor};
use autobwd_data::{Batch, CsvColumns, Dataset, Loader, TensorDataset};
use autobwd_ops::{
    Math, Model,
    nn::Linear,
    optim::{Adam, Optimizer},
};

const INPUTS: [&str; 2] = ["x", "y"];
const CLASSES: [&str; 2] = ["inside", "outside"];
const BATCH: usize = 32;
const EPOCHS: u64 = 60;
/// One row of so many is held out.
const HELD_OUT: usize = 5;

/// The columns of a table.
pub(crate) fn columns() -> CsvColumns {
    CsvColumns::new().numbers("inputs", INPUTS).classes("label", "place", &CLASSES)
}

/// One score a class.
fn scores(net: &Builder, inputs: &Expr) -> Expr {
    let hidden = Linear::builder(net, INPUTS.len(), 16).seed(1).build().forward(inputs).relu();
    Linear::builder(net, 16, CLASSES.len()).seed(2).build().forward(&hidden)
}

/// The rows of a table whose numbers fulfil a condition.
fn rows(table: &TensorDataset, is_chosen: impl Fn(usize) -> bool) -> Result<Batch> {
    table.batch(&(0..table.len()).filter(|row| is_chosen(*row)).collect::<Vec<_>>())
}

fn feeds(batch: &Batch) -> Vec<(&str, &dyn Feed)> {
    batch.iter().map(|(name, field)| (name, field as &dyn Feed)).collect()
}

/// Trains on four fifths of a table, and returns the accuracy on the others. Writes into the folder: `run.jsonl`, the log;
/// `classifier.json`, the program that computes scores; `weights.safetensors`, its weights.
///
/// # Errors
/// A table without enough rows, a file that cannot be written.
pub(crate) fn train(table: &TensorDataset, folder: &Path) -> Result<f64> {
    let net = Builder::new();
    let inputs = net.input("inputs", DType::F32, &[-1, INPUTS.len() as i64]);
    let label = net.input("label", DType::I64, &[-1, 1]);
    let scores = scores(&net, &inputs);
    net.set_signature(&[("inputs", &inputs)], &[("scores", &scores)])?;
    let accuracy = scores.accuracy(&label).name();
    // Before the updates, which every run of the training program makes.
    let evaluation = net.program()?.clone();
    let loss = scores.cross_entropy(&label).mean();
    Adam::new(0.01).minimize(&loss)?.complete()?;

    let (mut executor, mut scope) = (Executor::new(), Scope::new());
    executor.run(&net.startup().program()?, &mut scope, &[], &[])?;
    let examples = rows(table, |row| row % HELD_OUT != 0)?;
    let examples = TensorDataset::new(examples.iter().map(|(name, field)| (name, field.clone())))?;
    let mut loader = Loader::builder(examples).batch(BATCH).shuffle(3).build()?;
    let mut monitor = Monitor::create(folder.join("run.jsonl"), &net.program()?, &[&loss.name()])?;
    let mut step = 0;
    while loader.position().epoch < EPOCHS {
        for batch in loader.epoch() {
            let fetched = executor.run(&net.program()?, &mut scope, &feeds(&batch?), &monitor.fetches())?;
            step += 1;
            monitor.record_fetched(step, &fetched)?;
        }
    }

    let model = Model::for_inference(&evaluation, &scope, &["scores"])?;
    model.program.save(folder.join("classifier.json"))?;
    model.scope.save(folder.join("weights.safetensors"))?;
    let held_out = rows(table, |row| row % HELD_OUT == 0)?;
    executor.run(&evaluation, &mut scope, &feeds(&held_out), &[&accuracy])?[0].item()
}

#[cfg(test)]
mod tests {
    use autobwd::{Program, Tensor};

    use super::*;

    #[test]
    fn classifier_learns_and_its_files_load() -> Result<()> {
        let folder = tempfile::tempdir().unwrap();
        let table = columns().parse(include_bytes!("../data/points.csv").as_slice())?;
        let accuracy = train(&table, folder.path())?;
        assert!(accuracy > 0.85, "{accuracy}");

        let program = Program::load(folder.path().join("classifier.json"))?;
        let mut scope = Scope::new();
        scope.load(folder.path().join("weights.safetensors"))?;
        let point = Tensor::from_vec([1, 2], vec![0.1_f32, -0.2])?;
        let fetch = program.signature().output("scores").unwrap();
        let fetched = Executor::new().run(&program, &mut scope, &[("inputs", &point)], &[fetch])?;
        let [inside, outside] = fetched[0].slice::<f32>()? else { panic!("two scores") };
        assert!(inside > outside, "{inside} {outside}");
        Ok(())
    }
}

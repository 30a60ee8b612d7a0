//! The classifier: the columns of its table, its layers, and its training.

use std::path::Path;

use autobwd::{Builder, DType, Executor, Expr, Result, Scope, exec::Monitor};
use autobwd_data::{CsvColumns, CsvTable, Dataset, Fill, Loader, NumberColumn, Scaling};
use autobwd_ops::{
    Math, Model,
    nn::Linear,
    optim::{Adam, Optimizer},
};

const INPUTS: [&str; 2] = ["x", "y"];
const BATCH: usize = 32;
const EPOCHS: u64 = 60;
/// The part of the rows that is trained on.
const TRAINED: f64 = 0.8;

/// The columns of a table.
pub(crate) fn columns() -> CsvColumns {
    let number = |name| NumberColumn::new(name).fill(Fill::Median).scale(Scaling::Standard);
    CsvColumns::new().numbers("inputs", INPUTS.map(number)).categories("label", "place")
}

/// One score a class.
fn scores(net: &Builder, inputs: &Expr, classes: usize) -> Expr {
    let hidden = Linear::builder(net, INPUTS.len(), 16).seed(1).build().forward(inputs).relu();
    Linear::builder(net, 16, classes).seed(2).build().forward(&hidden)
}

/// Trains on four fifths of a table, and returns the accuracy on the others. Writes into the folder: `run.jsonl`, the log;
/// `classifier.json`, the program that computes scores; `weights.safetensors`, its weights; `encoder.json`, which makes
/// its inputs of rows.
///
/// # Errors
/// A table without enough rows, a file that cannot be written.
pub(crate) fn train(table: &CsvTable, folder: &Path) -> Result<f64> {
    let (examples, held_out) = table.split_stratified("place", TRAINED, 3)?;
    let encoder = columns().fit(&examples)?;
    encoder.save(folder.join("encoder.json"))?;

    let net = Builder::new();
    let inputs = net.input("inputs", DType::F32, &[-1, INPUTS.len() as i64]);
    let label = net.input("label", DType::I64, &[-1, 1]);
    let scores = scores(&net, &inputs, encoder.classes("label")?.len());
    net.set_signature(&[("inputs", &inputs)], &[("scores", &scores)])?;
    let accuracy = scores.accuracy(&label).name();
    // Before the updates, which every run of the training program makes.
    let evaluation = net.program()?.clone();
    let loss = scores.cross_entropy(&label).mean();
    Adam::new(0.01).minimize(&loss)?.complete()?;

    let (mut executor, mut scope) = (Executor::new(), Scope::new());
    executor.run(&net.startup().program()?, &mut scope, &[], &[])?;
    let mut loader = Loader::builder(encoder.encode(&examples)?).batch(BATCH).shuffle(3).build()?;
    let mut monitor = Monitor::create(folder.join("run.jsonl"), &net.program()?, &[&loss.name()])?;
    let mut step = 0;
    while loader.position().epoch < EPOCHS {
        for batch in loader.epoch() {
            let fetched = executor.run(&net.program()?, &mut scope, &batch?.feeds(), &monitor.fetches())?;
            step += 1;
            monitor.record_fetched(step, &fetched)?;
        }
    }

    let model = Model::for_inference(&evaluation, &scope, &["scores"])?;
    model.program.save(folder.join("classifier.json"))?;
    model.scope.save(folder.join("weights.safetensors"))?;
    let held_out = encoder.encode(&held_out)?.all()?;
    executor.run(&evaluation, &mut scope, &held_out.feeds(), &[&accuracy])?[0].item()
}

#[cfg(test)]
mod tests {
    use autobwd::Program;
    use autobwd_data::CsvEncoder;

    use super::*;

    #[test]
    fn classifier_learns_and_its_files_load() -> Result<()> {
        let folder = tempfile::tempdir().unwrap();
        let table = columns().parse_table(include_bytes!("../data/points.csv").as_slice())?;
        let accuracy = train(&table, folder.path())?;
        assert!(accuracy > 0.85, "{accuracy}");

        let program = Program::load(folder.path().join("classifier.json"))?;
        let mut scope = Scope::new();
        scope.load(folder.path().join("weights.safetensors"))?;
        let encoder = CsvEncoder::load(folder.path().join("encoder.json"))?;
        let point = encoder.select(&["inputs"])?.parse("y,x\n-0.2,0.1\n".as_bytes())?.all()?;
        let fetch = program.signature().output("scores").unwrap();
        let fetched = Executor::new().run(&program, &mut scope, &point.feeds(), &[fetch])?;
        assert_eq!(encoder.classes("label")?, ["inside", "outside"]);
        let [inside, outside] = fetched[0].slice::<f32>()? else { panic!("two scores") };
        assert!(inside > outside, "{inside} {outside}");
        Ok(())
    }
}

//! A model that answers requests: bodies of JSON in, bodies of JSON out.

use autobwd::{Error, ErrorKind, Feed, Result, Tensor, exec::Predictor};
use autobwd_ops::Model;
use serde_json::{Value, json};

use crate::{
    batch,
    request::{self, Input},
    response,
};

/// A model with a signature, as one thread serves it. Clones share the weights.
#[derive(Clone, Debug)]
pub(crate) struct ServedModel {
    predictor: Predictor,
    inputs: Vec<Input>,
    outputs: Vec<String>,
    description: Value,
}

impl ServedModel {
    /// The model for inference, with the inputs and outputs of its signature; it keeps plans for so many shapes.
    ///
    /// # Errors
    /// A program without signature, or one that writes a value that it keeps.
    pub(crate) fn new(model: Model, plans: usize) -> Result<ServedModel> {
        let (mut inputs, mut described) = (vec![], vec![]);
        let signature = model.program.signature().clone();
        if signature.inputs.is_empty() || signature.outputs.is_empty() {
            let text =
                "a served program needs a signature with inputs and outputs: set one before it is saved";
            return Err(Error::new(ErrorKind::Program, text));
        }
        for entry in signature.inputs {
            let var = model.program.expect_var(&entry.variable)?;
            let desc = model.program.root().vars.get(&var);
            let desc = desc.ok_or_else(|| {
                Error::new(ErrorKind::Program, format!("`{}` is not declared", entry.variable))
            })?;
            described.push(json!({
                "name": entry.name,
                "dtype": desc.dtype.to_string(),
                "shape": desc.dims.iter().map(|dim| dim.get()).collect::<Vec<_>>(),
            }));
            inputs.push(Input { name: entry.name, variable: entry.variable, dtype: desc.dtype });
        }
        let outputs: Vec<String> = signature.outputs.into_iter().map(|entry| entry.name).collect();
        let description = json!({ "inputs": described, "outputs": outputs });
        let predictor = model.predictor()?.cache_size(plans);
        Ok(ServedModel { predictor, inputs, outputs, description })
    }

    /// The names of inputs and outputs, and dtypes and shapes of inputs, with `null` for a dimension of any size.
    pub(crate) fn description(&self) -> &Value {
        &self.description
    }

    /// The answers to some requests. Those that fit are rows of one batch.
    pub(crate) fn answer(&mut self, bodies: &[&[u8]]) -> Vec<Result<Vec<u8>>> {
        let requests: Vec<Result<Vec<Tensor>>> =
            bodies.iter().map(|body| request::read(body, &self.inputs)).collect();
        let fitting = |a: &Result<Vec<Tensor>>, b: &Result<Vec<Tensor>>| match (a, b) {
            (Ok(a), Ok(b)) => batch::fit(a, b),
            _ => false,
        };
        let mut answers = vec![];
        for group in requests.chunk_by(fitting) {
            let valid: Vec<&[Tensor]> = group.iter().flatten().map(Vec::as_slice).collect();
            // A batch with a request that cannot be answered is no answer to the others.
            match self.run_batch(&valid) {
                Ok(Some(outputs)) if group.len() > 1 => {
                    answers.extend(outputs.iter().map(|outputs| response::write(&self.outputs, outputs)));
                }
                _ => answers.extend(group.iter().map(|request| match request {
                    Ok(inputs) => self.run(inputs).and_then(|found| response::write(&self.outputs, &found)),
                    Err(e) => Err(e.clone()),
                })),
            }
        }
        answers
    }

    /// The outputs of each request; `None` if there is only one, or if outputs have other rows than inputs.
    fn run_batch(&mut self, requests: &[&[Tensor]]) -> Result<Option<Vec<Vec<Tensor>>>> {
        if requests.len() < 2 {
            return Ok(None);
        }
        let counts: Vec<usize> = requests.iter().filter_map(|request| batch::rows(request)).collect();
        let outputs = self.run(&batch::join(requests)?)?;
        batch::split(&outputs, &counts)
    }

    fn run(&mut self, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        let feeds = self.inputs.iter().zip(inputs);
        let feeds: Vec<(&str, &dyn Feed)> =
            feeds.map(|(input, tensor)| (input.variable.as_str(), tensor as &dyn Feed)).collect();
        self.predictor.predict(&feeds)
    }
}

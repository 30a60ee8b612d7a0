//! Dropout of the inputs of adapters.

use std::collections::HashMap;

use autobwd::{Error, ErrorKind, Executor, OpDesc, Result};
use autobwd_ops::{Math, Model, nn::StepSeed};

use super::{Lora, factors};

impl Lora {
    /// Adds the dropout of a training to the branches of a model: each sees its own part of its input, another one at each
    /// step, scaled by `1 / (1 - dropout)`. It comes before the backward pass, and has no place in a program that generates
    /// or evaluates.
    ///
    /// The masks depend on the seed, the name of the module and the number of steps, which a counter in the scope has.
    ///
    /// ```
    /// use autobwd_models::{Lora, Pretrained};
    /// # let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/llama");
    /// let mut model = Pretrained::open(folder).load()?;
    /// let lora = Lora { dropout: 0.05, ..Lora::new(8, &["q_proj"]) };
    /// lora.attach(&mut model)?;
    /// lora.add_dropout(&mut model)?;
    /// assert!(model.scope.find("model.layers.0.self_attn.q_proj.lora_dropout.seed").is_some());
    /// # Ok::<(), autobwd::Error>(())
    /// ```
    ///
    /// # Errors
    /// A dropout that is not from 0 and below 1; a model without branches, or with dropout: the model is then unchanged.
    pub fn add_dropout(&self, model: &mut Model) -> Result<()> {
        self.check()?;
        if self.dropout == 0.0 {
            return Ok(());
        }
        let net = model.builder();
        let length = model.program.root().ops.len();
        let mut dropped = HashMap::new();
        for (at, op) in model.program.root().ops.iter().enumerate() {
            let Some((x, weights, ..)) = factors(op) else { continue };
            let name = model.program.name(weights);
            // The factor of 16-bit products is converted under a name of its own.
            let Some((module, _)) = name.split_once(".lora_A.weight") else { continue };
            let seed = StepSeed::new(&net, &format!("{module}.lora_dropout"), self.seed).next();
            let input = net.expr(model.program.name(x)).dropout(self.dropout as f32, &seed);
            dropped.insert(at, (x, input.check()?.name()));
        }
        if dropped.is_empty() {
            return Err(Error::new(ErrorKind::Program, "the model has no adapter"));
        }
        let mut program = net.program()?.clone();
        let mut ops = std::mem::take(&mut program.root_mut().ops);
        let mut added = ops.split_off(length).into_iter();
        let mut extended: Vec<OpDesc> = Vec::with_capacity(length + added.len());
        let of_branch = added.len() / dropped.len();
        for (at, mut op) in ops.into_iter().enumerate() {
            if let Some((x, input)) = dropped.get(&at) {
                let input = program.expect_var(input)?;
                op.inputs.args_mut().filter(|var| *var == x).for_each(|var| *var = input);
                let place = (op.site, op.origin);
                let own = added.by_ref().take(of_branch);
                extended.extend(own.map(|desc| OpDesc { site: place.0, origin: place.1, ..desc }));
            }
            extended.push(op);
        }
        program.root_mut().ops = extended;
        autobwd::verify(&program)?;
        Executor::new().run(&net.startup().program()?, &mut model.scope, &[], &[])?;
        model.program = program;
        Ok(())
    }
}

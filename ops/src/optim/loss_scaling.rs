//! Loss scaling for float16: the scaled loss, gradients of the loss itself, and updates that are skipped.

use std::collections::HashMap;

use autobwd::{
    Arg, Builder, DType, Dims, Error, Expr, New, OpDesc, OpInfoMap, Program, Result, VarDesc, emit,
    program::{Site, Var},
};

use super::{hyperparameters, state::fit};
use crate::{
    Init, Math, concat,
    logic::Where,
    reduce::{LogicalReduceAttrs, ReduceAny},
    shape::ExpandV2,
    update::{CheckFiniteAndUnscale, UpdateLossScaling},
};

/// The slot of updates that leave everything as it is.
const SKIP_UPDATE: &str = "SkipUpdate";

/// How the loss is scaled, so that gradients do not vanish in float16, whose smallest number is 6e-8.
///
/// The backward pass starts from `loss * loss_scaling_0`. Then, gradients are divided by the scale
/// ([`CheckFiniteAndUnscale`]). If one is infinite or NaN, the step changes no parameter, no state of the optimizer and no
/// schedule, but the scale alone. [`UpdateLossScaling`] changes the scale, after steps without infinities upwards. As in
/// the reference, statistics that the model itself keeps (of batch normalization) change in every step.
///
/// The fields have the names and values of the reference's `GradScaler`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LossScaling {
    /// The scale at the start.
    pub init_loss_scaling: f32,
    /// Factor of the scale after `incr_every_n_steps` steps with finite gradients.
    pub incr_ratio: f32,
    /// Factor of the scale, which stays at least 1, after `decr_every_n_nan_or_inf` steps in succession with infinite
    /// gradients.
    pub decr_ratio: f32,
    /// Steps with finite gradients until the scale rises.
    pub incr_every_n_steps: i32,
    /// Steps with infinite gradients until the scale falls.
    pub decr_every_n_nan_or_inf: i32,
    /// Whether the scale changes.
    pub use_dynamic_loss_scaling: bool,
}

impl Default for LossScaling {
    fn default() -> LossScaling {
        LossScaling {
            init_loss_scaling: 65536.0,
            incr_ratio: 2.0,
            decr_ratio: 0.5,
            incr_every_n_steps: 2000,
            decr_every_n_nan_or_inf: 1,
            use_dynamic_loss_scaling: true,
        }
    }
}

impl LossScaling {
    /// A scale that does not change.
    pub fn fixed(scale: f32) -> LossScaling {
        LossScaling { init_loss_scaling: scale, use_dynamic_loss_scaling: false, ..LossScaling::default() }
    }

    pub(super) fn validate(&self) -> Result<()> {
        hyperparameters::above_zero("init_loss_scaling", self.init_loss_scaling)?;
        hyperparameters::above_zero("incr_ratio", self.incr_ratio - 1.0)?;
        hyperparameters::above_zero("decr_ratio", self.decr_ratio)?;
        hyperparameters::below_one("decr_ratio", self.decr_ratio)?;
        for (name, steps) in [
            ("incr_every_n_steps", self.incr_every_n_steps),
            ("decr_every_n_nan_or_inf", self.decr_every_n_nan_or_inf),
        ] {
            if steps < 1 {
                return Err(Error::attr(name, format!("{steps} is not a positive number")));
            }
        }
        Ok(())
    }

    /// The scaled loss.
    pub(super) fn scaled(&self, net: &Builder, loss: &Expr) -> Expr {
        // No gradient flows to the scale.
        loss * fit(&self.scale(net), loss).freeze()
    }

    /// The scale, a variable that is kept.
    fn scale(&self, net: &Builder) -> Expr {
        kept(net, "loss_scaling_0", DType::F32, self.init_loss_scaling.into())
    }

    /// Pairs of parameters and gradients of the loss itself, and whether a gradient is infinite.
    pub(super) fn unscale(
        &self,
        net: &Builder,
        gradients: &[(Expr, Expr)],
    ) -> Result<(Vec<(Expr, Expr)>, Expr)> {
        let scale = net.expr(&net.scoped("loss_scaling_0"));
        let (mut unscaled, mut found) = (vec![], vec![]);
        // One operator for each gradient: a gradient's memory is free as soon as it has been divided.
        for (parameter, gradient) in gradients {
            let op = emit(CheckFiniteAndUnscale {
                x: vec![gradient.into()],
                scale: (&scale).into(),
                out: vec![New],
                found_infinite: New,
            });
            op.found_infinite.check()?;
            found.push(op.found_infinite);
            unscaled.extend(op.out.into_iter().map(|gradient| (parameter.clone(), gradient)));
        }
        let found = concat(&found.iter().collect::<Vec<_>>(), 0).any(&[]).reshape(&[1]);
        found.check()?;
        Ok((unscaled, found))
    }

    /// Appends the change of the scale.
    pub(super) fn update(&self, net: &Builder, found: &Expr) -> Result<()> {
        if !self.use_dynamic_loss_scaling {
            return Ok(());
        }
        let scale = net.expr(&net.scoped("loss_scaling_0"));
        let [good, bad] =
            ["num_good_steps_0", "num_bad_steps_0"].map(|name| kept(net, name, DType::I32, 0.0));
        let op = emit(UpdateLossScaling {
            x: vec![],
            found_infinite: found.into(),
            prev_loss_scaling: Arg::from(&scale),
            in_good_steps: Arg::from(&good),
            in_bad_steps: Arg::from(&bad),
            stop_update: None,
            out: vec![],
            loss_scaling: scale.into(),
            out_good_steps: good.into(),
            out_bad_steps: bad.into(),
            incr_every_n_steps: self.incr_every_n_steps,
            decr_every_n_nan_or_inf: self.decr_every_n_nan_or_inf,
            incr_ratio: self.incr_ratio,
            decr_ratio: self.decr_ratio,
            is_stopped: false,
        });
        op.loss_scaling.check().map(drop)
    }
}

fn kept(net: &Builder, name: &str, dtype: DType, value: f64) -> Expr {
    net.persistable(&net.scoped(name), dtype, &[1], |x| Init::Constant(value).emit(x, 0))
}

/// Makes all operators from `first` on keep what the program keeps if the bool `skip` is true: by their input
/// `SkipUpdate`, or by a selection of the value before.
pub(super) fn skip_updates(program: &mut Program, first: usize, skip: Var) -> Result<()> {
    let ops = OpInfoMap::linked()?;
    let updates = program.root_mut().ops.split_off(first);
    // By dimensions, the condition for each element.
    let mut conditions: HashMap<Vec<i64>, Var> = HashMap::new();
    for mut op in updates {
        let kept = |var: &Var| program.root().vars.get(var).is_some_and(|desc| desc.persistable);
        let kept: Vec<Var> = op.writes().filter(kept).collect();
        if !kept.is_empty() && ops.get(&op.ty)?.schema().input(SKIP_UPDATE).is_some() {
            op.inputs.set(SKIP_UPDATE, [skip]);
            program.root_mut().ops.push(op);
            continue;
        }
        let mut selected = vec![];
        for var in op.outputs.args_mut().filter(|var| kept.contains(var)) {
            let before = std::mem::replace(var, next(program, *var));
            selected.push((before, *var));
        }
        let site = op.site;
        program.root_mut().ops.push(op);
        for (before, after) in selected {
            let dims = program.root().vars.get(&before).map(|desc| desc.dims.clone()).unwrap_or_default();
            let shape: Vec<i64> = dims.iter().map(|dim| dim.wire()).collect();
            let known = conditions.get(&shape).copied();
            let condition = known.unwrap_or_else(|| expanded(program, skip, dims, site));
            conditions.insert(shape, condition);
            let select = Where { condition, x: before, y: after, out: before };
            program.root_mut().ops.push(OpDesc { site, ..select.into() });
        }
    }
    ops.verify(program)
}

/// A variable for the next value of one that is kept.
fn next(program: &mut Program, var: Var) -> Var {
    let name = format!("{}.next", program.name(var));
    let desc = program.root().vars.get(&var).map(|desc| VarDesc::data(desc.dtype, desc.dims.clone()));
    let next = program.fresh(&name);
    if let Some(desc) = desc {
        program.root_mut().vars.insert(next, desc);
    }
    next
}

/// The only element of a bool, for each element of a shape.
fn expanded(program: &mut Program, x: Var, dims: Dims, site: Option<Site>) -> Var {
    let shape: Vec<i32> = dims.iter().map(|dim| i32::try_from(dim.wire()).unwrap_or(i32::MAX)).collect();
    if shape == [1] {
        return x;
    }
    let name = program.name(x).to_string();
    let out = program.fresh(&name);
    let op: OpDesc = if shape.is_empty() {
        ReduceAny { x, out, reduce: LogicalReduceAttrs::over([]) }.into()
    } else {
        ExpandV2 { x, shape_input: None, expand_shapes_tensor: vec![], out, shape }.into()
    };
    let root = program.root_mut();
    root.vars.insert(out, VarDesc::data(DType::Bool, dims));
    root.ops.push(OpDesc { site, ..op });
    out
}

//! Appends operators to programs, or runs them immediately in eager mode.
//!
//! An operator's struct is split into its slots, with arguments (`OpArgs`) and a key of type and attributes (`OpKey`),
//! and a `template`: the struct with empty slots, which the resulting expressions fill at the end. An eager builder looks
//! the key up among prepared operators; only for a new one, and in a program, is the operator described (`OpDesc`).

use std::{panic::Location, sync::Arc};

use smallvec::SmallVec;

use super::{
    Arg, Builder, Expr,
    engine::Engine,
    expr::ExprValue,
    value::{TapeNode, Value},
};
use crate::{
    Describe, Error, ErrorKind, Meta, Op, OpDesc, OpKey, Result, Role, Site, SlotValues, Var, VarDesc,
};

impl Builder {
    /// Appends an operator whose program does not follow from an input; otherwise as [`emit`].
    #[must_use = "in eager mode, its outputs alone say that an operator has failed"]
    #[track_caller]
    pub fn emit<D: Describe<Arg>>(&self, op: D) -> <D::Op as Op>::Of<Expr> {
        let mut slots = SlotValues::new(<D::Op as Op>::SCHEMA.name, false);
        let template = op.into_parts(&mut slots);
        self.append::<D::Op>(&mut slots, template, Location::caller())
    }

    fn append<O: Op>(
        &self,
        slots: &mut SlotValues<Arg>,
        template: O::Of<()>,
        at: &'static Location<'static>,
    ) -> O::Of<Expr> {
        let args = &mut slots.values;
        let key = &mut slots.recorder.key;
        let at = self.site_or(at);
        let (template, outcome) = match self.run_known(args, key, O::SCHEMA.name, at) {
            Ok(true) => (template, Ok(())),
            Err(e) => (template, Err(e)),
            Ok(false) => {
                let mut described = SlotValues::new(O::SCHEMA.name, true);
                let template = template.into_parts(&mut described);
                let desc = described.describe_in_order();
                (template, desc.and_then(|desc| self.append_described(args, key, at, desc)))
            }
        };
        self.with_outputs::<O>(slots, template, outcome, at)
    }

    /// The operator with its outputs, which are failed expressions if it failed.
    #[inline]
    fn with_outputs<O: Op>(
        &self,
        slots: &mut SlotValues<Arg>,
        template: O::Of<()>,
        outcome: Result<()>,
        at: &'static Location<'static>,
    ) -> O::Of<Expr> {
        if let Err(e) = outcome {
            self.fail(&mut slots.values, e, at);
        }
        let mut exprs = slots.values.iter_mut().filter_map(|(.., arg)| arg.take()?.expr());
        O::fill(template, &mut || exprs.next().unwrap_or_else(|| Expr::of_var(self, Var::EMPTY)))
    }

    /// Turns the outputs of a failed operator into failed expressions: with the error of an argument that failed
    /// earlier, or else with the error of the operator. The builders of all arguments record it.
    #[cold]
    pub(crate) fn fail(&self, args: &mut OpArgs, error: Error, at: &'static Location<'static>) {
        let given = args.iter().filter_map(|(.., arg)| arg.as_ref()?.existing().cloned());
        let given: Vec<Expr> = given.collect();
        let failed = match given.iter().find_map(Expr::error) {
            Some(first) => self.failed_at(first.clone(), at),
            None => self.failed_at(error, at),
        };
        if let Some(e) = failed.error() {
            given.iter().for_each(|expr| expr.builder().record_failure(e));
        }
        for (role, _, arg) in args.iter_mut() {
            if let Some(arg) = arg
                && (*role == Role::Output || matches!(arg, Arg::New))
            {
                *arg = Arg::Existing(failed.clone());
            }
        }
    }

    /// Appends an operator, or runs it in eager mode, and replaces new arguments by the resulting expressions. `key`
    /// is the key of the operator. `describe` describes it, with variable k + 1 for the k-th argument, not counting holes.
    pub(crate) fn append_args(
        &self,
        args: &mut OpArgs,
        key: &mut OpKey,
        op: &str,
        at: &'static Location<'static>,
        describe: DescribeFn<'_>,
    ) -> Result<()> {
        let at = self.site_or(at);
        match self.run_known(args, key, op, at)? {
            true => Ok(()),
            false => self.append_described(args, key, at, describe()?),
        }
    }

    /// Runs an operator that was prepared before for such inputs. Returns `false` if it was not, or for a program.
    fn run_known(
        &self,
        args: &mut OpArgs,
        key: &mut OpKey,
        op: &str,
        at: &'static Location<'static>,
    ) -> Result<bool> {
        let Some(engine) = self.engine() else { return Ok(false) };
        let operands = Operands::of(args, op, at)?;
        let Some(node) = engine.run_known(key, &operands.inputs, &operands.overwritten, at) else {
            return Ok(false);
        };
        let outputs = operands.outputs;
        let node = node?;
        drop(operands);
        self.put_outputs(args, node, outputs);
        Ok(true)
    }

    /// As [`append_args`](Builder::append_args), for an operator that is not prepared. `key` includes the inputs.
    fn append_described(
        &self,
        args: &mut OpArgs,
        key: &OpKey,
        at: &'static Location<'static>,
        desc: OpDesc,
    ) -> Result<()> {
        match self.engine() {
            Some(engine) => self.run_described(engine, args, key, at, desc),
            None => self.append_to_program(args, at, desc),
        }
    }

    /// Prepares an operator for its inputs, and runs it.
    fn run_described(
        &self,
        engine: &dyn Engine,
        args: &mut OpArgs,
        key: &OpKey,
        at: &'static Location<'static>,
        desc: OpDesc,
    ) -> Result<()> {
        let operands = Operands::of(args, &desc.ty, at)?;
        let Operands { inputs, overwritten, outputs } = &operands;
        let outputs = *outputs;
        let node = engine.run_described(self, key, &mut || Ok(desc.clone()), inputs, overwritten, at)?;
        drop(operands);
        self.put_outputs(args, node, outputs);
        Ok(())
    }

    /// Replaces new arguments of an operator by the values it computed.
    #[inline]
    fn put_outputs(&self, args: &mut OpArgs, node: Arc<TapeNode>, outputs: usize) {
        let mut node = Some(node);
        let made = args.iter_mut().filter(|(role, _, arg)| *role == Role::Output && arg.is_some());
        for (out, (.., arg)) in made.enumerate() {
            // The last output takes the node without a copy.
            let node = if out + 1 == outputs { node.take() } else { node.clone() };
            if let (Some(Arg::New), Some(node)) = (&arg, node) {
                *arg = Some(Arg::Existing(Expr::of_value(self, Value::of(node, out))));
            }
        }
    }

    /// Appends an operator to the program, and declares its new outputs.
    fn append_to_program(
        &self,
        args: &mut OpArgs,
        at: &'static Location<'static>,
        mut desc: OpDesc,
    ) -> Result<()> {
        let info = self.ops()?.get(&desc.ty)?;
        let block = self.block();
        let mut vars = vec![];
        let mut new_vars = vec![];
        for (role, slot, arg) in args.iter_mut() {
            let Some(arg) = arg else { continue };
            vars.push(match arg {
                Arg::New if *role == Role::Input => return Err(missing_argument(&desc.ty, slot)),
                Arg::New => {
                    let var = self.change(|program| program.fresh(&desc.ty));
                    new_vars.push(var);
                    var
                }
                Arg::Existing(expr) => match expr.held().map_err(Clone::clone)? {
                    ExprValue::Var(var) if expr.builder().is(self) => *var,
                    _ => return Err(two_programs(&desc.ty, at)),
                },
            });
        }
        let stand_ins = desc.inputs.args_mut().chain(desc.outputs.args_mut());
        stand_ins.filter(|v| **v != Var::EMPTY).for_each(|v| *v = vars[v.index() - 1]);
        desc.site = Some(Site::Here(at));

        // A snapshot, because shape rules are user code.
        let program = self.snapshot();
        let index = program.block(block).map_or(0, |block| block.ops.len());
        let mut metas: Vec<(Var, Meta)> = vec![];
        let outcome = info.check(&desc).and_then(|()| {
            let of = |var: Var| match program.lookup(block, var) {
                Some(known) => Ok(known.meta()),
                None => {
                    let text =
                        format!("`{}` is not a variable of block {}", program.name(var), block.index());
                    Err(Error::new(ErrorKind::UnknownVar, text))
                }
            };
            info.infer(&desc, &of, &mut |var, meta| metas.push((var, meta)))
        });
        outcome
            .and_then(|()| program.check_declared(block, &metas))
            .map_err(|e| e.at_op(|| program.describe_op(block, index, &desc)))?;
        drop(program);
        let added = self.change(|program| {
            let block = program.block_mut(block)?;
            // Fresh variables have ascending numbers.
            for (var, meta) in metas.into_iter().filter(|(var, _)| new_vars.binary_search(var).is_ok()) {
                let stop_gradient = !meta.dtype.is_float();
                block.vars.insert(var, VarDesc { stop_gradient, ..VarDesc::of(meta) });
            }
            block.ops.push(desc);
            Some(())
        });
        added.ok_or_else(|| Error::internal("no such block"))?;
        for (var, arg) in vars.into_iter().zip(args.iter_mut().filter_map(|(.., arg)| arg.as_mut())) {
            *arg = Arg::Existing(Expr::of_var(self, var));
        }
        Ok(())
    }
}

/// The eager values among the arguments of an operator.
struct Operands<'a> {
    inputs: SmallVec<[&'a Value; 3]>,
    /// Values that outputs overwrite, with the index of the output.
    overwritten: SmallVec<[(usize, &'a Value); 1]>,
    /// The number of outputs.
    outputs: usize,
}

impl<'a> Operands<'a> {
    #[inline]
    fn of(args: &'a OpArgs, op: &str, at: &'static Location<'static>) -> Result<Operands<'a>> {
        let mut operands = Operands { inputs: SmallVec::new(), overwritten: SmallVec::new(), outputs: 0 };
        for (role, slot, arg) in args {
            let Some(arg) = arg else { continue };
            let value = match arg {
                Arg::New => None,
                Arg::Existing(expr) => match expr.held() {
                    Ok(ExprValue::Value(value)) => Some(value),
                    Ok(ExprValue::Var(_)) => return Err(two_programs(op, at)),
                    Err(e) => return Err(e.clone()),
                },
            };
            match (role, value) {
                (Role::Input, Some(value)) => operands.inputs.push(value),
                (Role::Input, None) => return Err(missing_argument(op, slot)),
                (Role::Output, Some(value)) => operands.overwritten.push((operands.outputs, value)),
                (Role::Output, None) => {}
            }
            operands.outputs += usize::from(*role == Role::Output);
        }
        Ok(operands)
    }
}

fn missing_argument(op: &str, slot: &str) -> Error {
    let text = format!("operator `{op}`, input `{slot}`: an input must be an existing variable, not `New`");
    Error::new(ErrorKind::Slot, text)
}

fn two_programs(op: &str, at: &'static Location<'static>) -> Error {
    let at = Site::Here(at);
    let text = format!("operator `{op}`, added at {at}: the inputs are expressions of two programs");
    Error::new(ErrorKind::UnknownVar, text)
}

/// The arguments of an operator, in the order in which it describes its slots; `None` is a hole.
pub type OpArgs = SmallVec<[(Role, &'static str, Option<Arg>); 4]>;

/// Describes an operator on demand.
pub type DescribeFn<'a> = &'a mut dyn FnMut() -> Result<OpDesc>;

/// Appends an operator to the program of its inputs, or runs it immediately if they are eager values. Returns it with
/// its outputs filled in.
///
/// ```
/// # use autobwd::{Builder, DType};
/// use autobwd::{Arg, New, emit};
/// use autobwd_ops::activation::Relu;
/// # let x = Builder::new().input("x", DType::F32, &[4]);
/// let out = emit(Relu { x: Arg::from(&x), out: New }).out;
/// # assert_eq!(out.name(), "relu_0");
/// ```
///
/// All outputs are failed expressions if an input has failed, with its error, or if the operator itself cannot be
/// appended or computed: its type is unknown, attributes are out of bounds, or dtypes and shapes of inputs do not fit.
/// The error then names operator, slots, variables and the line of the call.
#[must_use = "in eager mode, its outputs alone say that an operator has failed"]
#[track_caller]
#[inline]
pub fn emit<D: Describe<Arg>>(op: D) -> <D::Op as Op>::Of<Expr> {
    let at = Location::caller();
    let name = <D::Op as Op>::SCHEMA.name;
    let mut slots = SlotValues::new(name, false);
    let template = op.into_parts(&mut slots);
    let builder = slots.values.iter().find_map(|(.., arg)| Some(arg.as_ref()?.existing()?.builder().clone()));
    match builder {
        Some(builder) => builder.append::<D::Op>(&mut slots, template, at),
        None => {
            let e = no_builder(name, &slots.values);
            Builder::new().with_outputs::<D::Op>(&mut slots, template, Err(e), at)
        }
    }
}

/// The error for an operator whose arguments have no builder.
#[cold]
fn no_builder(op: &str, args: &OpArgs) -> Error {
    match args.iter().find(|(role, ..)| *role == Role::Input) {
        Some((_, slot, _)) => missing_argument(op, slot),
        None => {
            let text =
                format!("operator `{op}` has no inputs, so its builder is unknown; use `Builder::emit`");
            Error::new(ErrorKind::Slot, text)
        }
    }
}

//! The gradient operators of a single operator, from its description alone.

use rustc_hash::FxHashMap;

use super::{DeclaredVars, GradBlock, GradKind, GradRequest, check_emitted};
use crate::{BlockId, Error, ErrorKind, OpDesc, OpInfo, OpInfoMap, Program, Result, Var, desc::GRAD};

/// The result of [`OpInfoMap::gradient_ops`].
#[derive(Clone, Debug, Default)]
pub struct GradientOps {
    /// The gradient operators, in execution order.
    pub ops: Vec<OpDesc>,
    /// Gradients that they read or write, each with its forward variable.
    pub gradient_of: Vec<(Var, Var)>,
}

/// The gradients of one operator's variables.
#[derive(Debug, Default)]
pub struct OperatorGradients {
    /// By output.
    pub of_output: FxHashMap<Var, Var>,
    /// By input whose gradient is wanted.
    pub wanted: FxHashMap<Var, Var>,
}

impl OperatorGradients {
    /// By gradient: its variable.
    pub fn variables(&self) -> FxHashMap<Var, Var> {
        self.wanted.iter().chain(&self.of_output).map(|(var, grad)| (*grad, *var)).collect()
    }

    /// The operators that the gradient rule of an operator emits, checked. `arrives` says whether the gradient of an
    /// output has a contribution, `of_model` returns the variables that a rule may not write.
    ///
    /// # Errors
    /// Those of the rule; as [`check_emitted`].
    #[allow(clippy::too_many_arguments)]
    pub fn emit(
        &self,
        ops: &OpInfoMap,
        info: &OpInfo,
        fwd: &OpDesc,
        names: &mut Program,
        arrives: &dyn Fn(Var) -> bool,
        of_model: &dyn Fn(Var) -> Option<Var>,
        block: Option<&GradBlock>,
    ) -> Result<Vec<OpDesc>> {
        let of_output = |var: Var| self.of_output.get(&var).copied().unwrap_or(Var::EMPTY);
        let wanted = |var: Var| self.wanted.get(&var).copied();
        let mut emitted = vec![];
        info.emit_grad(GradRequest {
            ops,
            fwd,
            names,
            declared: DeclaredVars { block: BlockId::ROOT, original: &|var| var },
            of_output: &of_output,
            wanted: &wanted,
            arrives: &|var| arrives(of_output(var)),
            block,
            emitted: &mut emitted,
        })?;
        let variables = self.variables();
        check_emitted(ops, names, fwd, &emitted, &|var| variables.contains_key(&var), of_model)?;
        Ok(emitted)
    }
}

impl OpInfoMap {
    /// The gradient operators of one operator, as its gradient rule describes them: the counterpart of the reference's
    /// `GradOpDescMaker`. The gradient of `x` is the variable `x@GRAD`; variables in `no_grad` have none, and operators
    /// without outputs are omitted. An operator whose gradient is zero has no gradient operators.
    ///
    /// Only names are added to the program. `append_backward` and `gradients` do the steps that concern several
    /// operators: they sum contributions to a gradient and fill missing gradients with zeros.
    ///
    /// ```
    /// use autobwd::{OpDesc, OpInfoMap, Program};
    /// use autobwd_ops::matmul::Mul;
    ///
    /// let mut program = Program::new();
    /// let [x, w, out] = ["x", "w", "out"].map(|name| program.var(name));
    /// let mul = OpDesc::from(Mul { x, y: w, out, x_num_col_dims: 1, y_num_col_dims: 1 });
    /// let found = OpInfoMap::linked()?.gradient_ops(&mut program, &mul, &[x])?;
    /// assert_eq!(
    ///     program.op_text(&found.ops[0]).to_string(),
    ///     "w@GRAD = mul_grad(Out@GRAD=out@GRAD, X=x, Y=w, x_num_col_dims=1, y_num_col_dims=1)"
    /// );
    /// let named = found.gradient_of.iter().map(|(grad, of)| (program.name(*grad), program.name(*of)));
    /// assert_eq!(named.collect::<Vec<_>>(), [("out@GRAD", "out"), ("w@GRAD", "w")]);
    /// # Ok::<(), autobwd::Error>(())
    /// ```
    ///
    /// # Errors
    /// An unknown operator; invalid slots or attributes; an operator without gradient, or one that runs a block: see
    /// [`gradient_ops_with_block`](OpInfoMap::gradient_ops_with_block).
    pub fn gradient_ops(&self, program: &mut Program, op: &OpDesc, no_grad: &[Var]) -> Result<GradientOps> {
        self.emitted(program, op, no_grad, None).map_err(|e| e.at_op(|| program.describe_at("by itself", op)))
    }

    /// The same for an operator that runs a block (`while`, `conditional_block`, `recurrent`), with the gradient of its
    /// block, which the reference's makers get as well. `autobwd::backward::gradient_block` builds that block.
    ///
    /// # Errors
    /// As [`gradient_ops`](OpInfoMap::gradient_ops).
    pub fn gradient_ops_with_block(
        &self,
        program: &mut Program,
        op: &OpDesc,
        no_grad: &[Var],
        block: &GradBlock,
    ) -> Result<GradientOps> {
        let emitted = self.emitted(program, op, no_grad, Some(block));
        emitted.map_err(|e| e.at_op(|| program.describe_at("by itself", op)))
    }

    fn emitted(
        &self,
        program: &mut Program,
        op: &OpDesc,
        no_grad: &[Var],
        block: Option<&GradBlock>,
    ) -> Result<GradientOps> {
        let info = self.get(&op.ty)?;
        info.check(op)?;
        let refuse = |text: &str| Err(Error::new(ErrorKind::NoGradient, text));
        match info.grad_kind() {
            GradKind::Zero => return Ok(GradientOps::default()),
            kind @ GradKind::None(_) => {
                return refuse(&format!("the operator has no gradient{}", kind.because()));
            }
            _ if info.is_control() && block.is_none() => {
                return refuse(
                    "the gradient needs the gradient of the block: build it with `backward::gradient_block` and pass it to \
                     `gradient_ops_with_block`, or use `append_backward`, which builds both",
                );
            }
            GradKind::Operator(_) | GradKind::Derived(_) | GradKind::Composed | GradKind::Rule => {}
        }
        let mut grads: FxHashMap<Var, Var> = FxHashMap::default();
        for var in op.reads().chain(op.writes()) {
            let name = format!("{}{GRAD}", program.name(var));
            grads.insert(var, program.var(&name));
        }
        let wanted = grads.iter().filter(|(var, _)| !no_grad.contains(var));
        let own =
            OperatorGradients { wanted: wanted.map(|(var, grad)| (*var, *grad)).collect(), of_output: grads };
        let of_model = |var: Var| own.of_output.contains_key(&var).then_some(var);
        let mut ops = own.emit(self, info, op, program, &|_| true, &of_model, block)?;
        let of = own.variables();
        ops.retain(|own| own.writes().next().is_some());
        let mut gradient_of: Vec<(Var, Var)> = vec![];
        for own in &mut ops {
            own.site = op.site;
            for grad in own.reads().chain(own.writes()) {
                if let Some(var) = of.get(&grad)
                    && !gradient_of.contains(&(grad, *var))
                {
                    gradient_of.push((grad, *var));
                }
            }
        }
        Ok(GradientOps { ops, gradient_of })
    }
}

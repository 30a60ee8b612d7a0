//! Tracing: records the run of a function as a program.

use std::{cell::RefCell, panic::Location, rc::Rc, sync::Arc};

use rustc_hash::FxHashMap;

use crate::engine::{Eager, engine};
use autobwd_core::{
    __private::{Engine, NodeOrigin, PreparedOp, TapeNode, internals::*},
    Builder, Error, ErrorKind, Expr, OpDesc, Program, Result, Role, Site, Var, VarDesc,
    desc::check_name,
    graph_builder::Value,
    operators::Assign,
};
use autobwd_exec::Scope;

/// A traced function.
#[derive(Debug)]
#[non_exhaustive]
pub struct Trace {
    /// The program.
    pub program: Program,
    /// Captured values: they are not inputs, and the program keeps them under their names.
    pub scope: Scope,
    /// Names of the function's results.
    pub outputs: Vec<String>,
    /// The function's results in the traced run.
    pub values: Vec<Expr>,
}

/// Runs a function once and records its operators as a program, gradients and updates included. `inputs` are values to
/// be fed to the program, with their names in it. All other values become parameters (if they are leaves) or
/// persistable variables. Control flow of Rust is fixed to this one run.
///
/// ```
/// use autobwd::{Executor, Tensor, tape::trace};
/// use autobwd_ops::Math;
///
/// let tape = autobwd::eager();
/// let w = tape.leaf("w", Tensor::scalar(3.0)?);
/// let x = tape.constant(Tensor::scalar(2.0)?);
/// let mut traced = trace(&tape, &[("x", &x)], || Ok(vec![(&x * &w).square()]))?;
/// assert_eq!(traced.values[0].item()?, 36.0);
///
/// let x = Tensor::scalar(5.0)?;
/// let fetched = Executor::new().run(&traced.program, &mut traced.scope, &[("x", &x)], &[&traced.outputs[0]])?;
/// assert_eq!(fetched[0].item()?, 225.0);
/// # Ok::<(), autobwd::Error>(())
/// ```
///
/// # Errors
/// A builder of programs, or one that is being traced; variables of a program, or failed expressions; a repeated or
/// invalid name; the errors of the function, which must not [`set`](Expr::set) values.
pub fn trace(
    tape: &Builder,
    inputs: &[(&str, &Expr)],
    function: impl FnOnce() -> Result<Vec<Expr>>,
) -> Result<Trace> {
    let refuse = |text: &str| Error::new(ErrorKind::Program, text);
    let eager = engine(tape).map_err(|_| refuse("only an eager builder can be traced"))?;
    if eager.is_traced() {
        return Err(refuse("the builder is being traced already"));
    }
    let notes = Rc::new(RefCell::new(TraceWriter::default()));
    for (name, expr) in inputs {
        let value = expr
            .check()?
            .eager_value()
            .ok_or_else(|| refuse("an input is a variable of a program, not an eager value: make it with the traced builder, such as by `constant`"))?;
        notes.borrow_mut().input(name, value)?;
    }
    let heard = notes.clone();
    let listener = move |ready: &PreparedOp, reads: &[&Value], makes: &[Value], site| {
        heard.borrow_mut().operator(ready, reads, makes, site);
    };
    *eager.listener.borrow_mut() = Some(Box::new(listener));
    let listening = Listening(eager);
    let values = function()?;
    drop(listening);
    let mut notes = notes.take();
    if let Some(e) = notes.failed {
        return Err(e);
    }
    let mut outputs = vec![];
    for expr in &values {
        let value = expr.check()?.eager_value().ok_or_else(|| {
            refuse("an output is a variable of a program, not an eager value: compute it from the inputs")
        })?;
        let var = notes.var(value);
        outputs.push(notes.program.name(var).to_string());
    }
    Ok(Trace { program: notes.program, scope: notes.scope, outputs, values })
}

/// Removes the listener when dropped, also on a panic of the function.
struct Listening<'a>(&'a Eager);
impl Drop for Listening<'_> {
    fn drop(&mut self) {
        *self.0.listener.borrow_mut() = None;
    }
}

/// A trace under construction.
#[derive(Default)]
struct TraceWriter {
    program: Program,
    scope: Scope,
    /// The nodes are kept alive, so that their addresses stay unique. By output, and whether it has a gradient.
    vars: FxHashMap<(*const TapeNode, u32, bool), (Var, Arc<TapeNode>)>,
    failed: Option<Error>,
}

impl TraceWriter {
    fn record_var(&mut self, value: &Value, var: Var) {
        let key = (Arc::as_ptr(value.node()), value.out(), value.requires_grad());
        self.vars.insert(key, (var, value.node().clone()));
    }

    fn declare(&mut self, name: &str, desc: VarDesc) -> Option<Var> {
        let var = self.program.var(name);
        let vars = &mut self.program.root_mut().vars;
        (!vars.contains_key(&var)).then(|| vars.insert(var, desc)).map(|_| var)
    }

    fn input(&mut self, name: &str, value: &Value) -> Result<()> {
        let stop_gradient = !value.requires_grad();
        let desc = VarDesc { stop_gradient, ..VarDesc::of(value.meta().clone()) };
        check_name(name)?;
        let twice = || Error::new(ErrorKind::Program, format!("two inputs have the name `{name}`"));
        let var = self.declare(name, desc).ok_or_else(twice)?;
        self.record_var(value, var);
        Ok(())
    }

    /// The variable of an input.
    fn var(&mut self, value: &Value) -> Var {
        let key = (Arc::as_ptr(value.node()), value.out(), value.requires_grad());
        if let Some((var, _)) = self.vars.get(&key) {
            return *var;
        }
        let var = match self.vars.get(&(key.0, key.1, true)) {
            Some((var, _)) => {
                let from = *var;
                let var = self.fresh("assign", value);
                self.program.root_mut().ops.push(Assign { x: from, out: var }.into());
                var
            }
            None => self.captured(value),
        };
        self.record_var(value, var);
        var
    }

    fn fresh(&mut self, prefix: &str, value: &Value) -> Var {
        let var = self.program.fresh(prefix);
        let stop_gradient = !value.requires_grad();
        let desc = VarDesc { stop_gradient, ..VarDesc::of(value.meta().clone()) };
        self.program.root_mut().vars.insert(var, desc);
        var
    }

    /// A captured value.
    fn captured(&mut self, value: &Value) -> Var {
        let (dtype, dims) = (value.meta().dtype, value.meta().dims.clone());
        let desc = match value.is_leaf() {
            true => VarDesc::parameter(dtype, dims),
            false => VarDesc { persistable: true, ..VarDesc::data(dtype, dims) },
        };
        let own = match &value.node().origin {
            NodeOrigin::Source(given) if check_name(&given.name).is_ok() => {
                self.declare(&given.name, desc.clone())
            }
            _ => None,
        };
        let var = own.unwrap_or_else(|| {
            let var = self.program.fresh("constant");
            self.program.root_mut().vars.insert(var, desc);
            var
        });
        match value.tensor() {
            Ok(tensor) => self.scope.set(self.program.name(var), tensor),
            Err(e) => self.failed = Some(e),
        }
        var
    }

    fn operator(
        &mut self,
        ready: &PreparedOp,
        reads: &[&Value],
        makes: &[Value],
        site: &'static Location<'static>,
    ) {
        let reads: Vec<Var> = reads.iter().map(|value| self.var(value)).collect();
        let mut writes = vec![];
        for value in makes {
            let var = match value.node().call() {
                Some(_) => self.fresh(&ready.desc.ty, value),
                // It is overwritten.
                None => self.var(value),
            };
            self.record_var(value, var);
            writes.push(var);
        }
        let mut desc = OpDesc { site: Some(Site::Here(site)), ..ready.desc.clone() };
        for arg in desc.inputs.args_mut().chain(desc.outputs.args_mut()).filter(|v| **v != Var::EMPTY) {
            *arg = match ready.arg(*arg) {
                (Role::Input, i) => reads[i],
                (Role::Output, i) => writes[i],
            };
        }
        self.program.root_mut().ops.push(desc);
    }
}

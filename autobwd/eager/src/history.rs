//! History of a value: the recorded computation, as a program with values.

use std::{fmt, sync::Arc};

use rustc_hash::{FxHashMap, FxHashSet};

use autobwd_core::{
    __private::{NodeOrigin, TapeNode},
    Builder, Error, ErrorKind, Expr, Name, OpDesc, Program, Result, Role, Site, Var, VarDesc,
    desc::draw::{self, Labels},
    graph_builder::Value,
};

/// The recorded computation of a value: operators, the variables between them, and their values. [`history`] returns
/// it; it is plain data like any program.
///
/// ```
/// use autobwd::{Tensor, tape::{eager, history}};
/// use autobwd_ops::Math;
///
/// let tape = autobwd::eager();
/// let x = tape.leaf("x", Tensor::scalar(2.0)?);
/// let y = tape.leaf("y", Tensor::scalar(3.0)?);
/// let z = (&x * &y).named("z");
/// let history = history(&(z.log() + z.exp()))?;
/// let lines: Vec<_> = history.program.root().ops.iter().map(|op| history.program.op_text(op).to_string()).collect();
/// assert_eq!(lines, [
///     "z = elementwise_mul(X=x, Y=y, axis=-1)",
///     "log_0 = log(X=z)",
///     "exp_0 = exp(X=z)",
///     "elementwise_add_0 = elementwise_add(X=log_0, Y=exp_0, axis=-1)",
/// ]);
/// assert_eq!(history.value("z")?.item()?, 6.0);
/// assert!(history.to_dot().contains(r#"label="x\nfloat64 []\n= 2""#), "{}", history.to_dot());
/// # Ok::<(), autobwd::Error>(())
/// ```
#[derive(Debug)]
pub struct History {
    /// The operators in execution order; user-defined functions appear under their names. Leaves are parameters,
    /// constants are data.
    pub program: Program,
    /// The current values of its variables: inputs may have been overwritten since.
    pub values: Vec<(Var, Expr)>,
}

/// The recorded computation of a value, from leaves and constants.
///
/// # Errors
/// A failed expression; a variable of a program.
pub fn history(of: &Expr) -> Result<History> {
    let value = of.check()?.eager_value().ok_or_else(|| {
        let text = format!(
            "`{}` is a variable of a program, not an eager value: print or draw the program instead",
            of.name()
        );
        Error::new(ErrorKind::NoValue, text)
    })?;
    let mut nodes: Vec<&Arc<TapeNode>> = vec![];
    let (mut seen, mut rest) = (FxHashSet::default(), vec![&value.node]);
    while let Some(node) = rest.pop() {
        if seen.insert(Arc::as_ptr(node)) {
            nodes.push(node);
            rest.extend(node.inputs().iter().map(|input| &input.node));
        }
    }
    // A result has a larger number than its inputs.
    nodes.sort_by_key(|node| node.number);
    let (program, values, vars) = (Program::new(), vec![], FxHashMap::default());
    let mut history = HistoryWriter { builder: of.builder(), program, values, vars };
    nodes.into_iter().for_each(|node| history.operator(node));
    history.var(value);
    Ok(History { program: history.program, values: history.values })
}

impl History {
    /// The value of the variable of that name.
    ///
    /// # Errors
    /// An unknown name.
    pub fn value(&self, name: &str) -> Result<&Expr> {
        let var = self.program.expect_var(name)?;
        self.held(var).ok_or_else(|| {
            Error::new(ErrorKind::UnknownVar, format!("`{name}` has no value in this history"))
        })
    }

    /// The history as a graph in Graphviz's language, as [`Program::to_dot`], with values of up to four elements.
    pub fn to_dot(&self) -> String {
        draw::dot(&self.program, Labels { note: &|var| self.note(var), ..Labels::default() })
    }

    /// The history as a Mermaid flow chart; otherwise as [`to_dot`](History::to_dot).
    pub fn to_mermaid(&self) -> String {
        draw::mermaid(&self.program, Labels { note: &|var| self.note(var), ..Labels::default() })
    }

    /// Variables are numbered in the order of their values.
    fn held(&self, var: Var) -> Option<&Expr> {
        let at = self.values.binary_search_by_key(&var.index(), |(known, _)| known.index()).ok()?;
        Some(&self.values[at].1)
    }

    fn note(&self, var: Var) -> Option<String> {
        let value = self.held(var)?;
        if value.dims().numel().get()? > 4 {
            return None;
        }
        match value.tensor().ok()?.to_f64s()[..] {
            [x] => Some(format!("= {x}")),
            ref all => Some(format!("= {all:?}")),
        }
    }
}
impl fmt::Display for History {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.program.fmt(f)
    }
}

/// A history under construction.
struct HistoryWriter<'a> {
    builder: &'a Builder,
    program: Program,
    values: Vec<(Var, Expr)>,
    vars: FxHashMap<(*const TapeNode, u32), Var>,
}

impl HistoryWriter<'_> {
    /// The variable of a value.
    fn var(&mut self, value: &Value) -> Var {
        let key = (Arc::as_ptr(&value.node), value.out());
        if let Some(var) = self.vars.get(&key) {
            return *var;
        }
        let own = value.own_name().filter(|name| self.program.find(name).is_none());
        let var = match (own, &value.node.origin) {
            (Some(name), _) => self.program.var(&name),
            (None, NodeOrigin::Source(_)) => {
                self.program.fresh(if value.is_leaf() { "leaf" } else { "constant" })
            }
            (None, _) => self.program.fresh(&value.name()),
        };
        let (dtype, dims) = (value.meta().dtype, value.meta().dims.clone());
        let desc = match value.node.inputs().is_empty() {
            true if value.is_leaf() => VarDesc::parameter(dtype, dims),
            true => VarDesc::data(dtype, dims),
            false => VarDesc::of(value.meta().clone()),
        };
        self.program.root_mut().vars.insert(var, desc);
        self.values.push((var, self.builder.hold(value.clone())));
        self.vars.insert(key, var);
        var
    }

    /// The operator of a node, if it is recorded.
    fn operator(&mut self, node: &Arc<TapeNode>) {
        let reads: Vec<Var> = node.inputs().iter().map(|input| self.var(input)).collect();
        if reads.is_empty() {
            return;
        }
        let desc = match &node.origin {
            NodeOrigin::Computed(call) => {
                let outs = 0..call.outputs.len();
                let writes: Vec<Var> = outs.map(|out| self.var(&Value::of(node.clone(), out))).collect();
                let mut desc = OpDesc { site: Some(Site::Here(call.site)), ..call.prepared.desc.clone() };
                for arg in desc.inputs.args_mut().chain(desc.outputs.args_mut()).filter(|v| **v != Var::EMPTY)
                {
                    *arg = match call.prepared.arg(*arg) {
                        (Role::Input, i) => reads[i],
                        (Role::Output, i) => writes[i],
                    };
                }
                desc
            }
            NodeOrigin::Applied(applied) => {
                let out = self.var(&Value::of(node.clone(), 0));
                let desc =
                    OpDesc::new(Name::from(applied.function.name())).input("X", reads).output("Out", [out]);
                OpDesc { site: Some(Site::Here(applied.site)), ..desc }
            }
            NodeOrigin::Source(_) => return,
        };
        self.program.root_mut().ops.push(desc);
    }
}

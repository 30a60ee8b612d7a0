//! History of a value: the recorded computation, as a program with values.

use std::{fmt, sync::Arc};

use rustc_hash::{FxHashMap, FxHashSet};

use crate::queue::{Queue, QueueEntry, QueueKey, key};
use autobwd_core::{
    __private::{NodeOrigin, TapeNode, internals::*},
    Builder, Error, ErrorKind, Expr, Meta, Name, OpDesc, Program, Result, Role, Site, Tensor, Var, VarDesc,
    desc::draw::{self, Labels, Mark},
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
    let (mut seen, mut rest) = (FxHashSet::default(), vec![value.node()]);
    while let Some(node) = rest.pop() {
        if seen.insert(Arc::as_ptr(node)) {
            nodes.push(node);
            rest.extend(node.inputs().iter().map(|input| input.node()));
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

    /// The history during the backward pass of [`backward_with`](crate::backward_with), as a graph in Graphviz's
    /// language. Every value is an ellipse: dark orange if it is the next to leave the queue, light orange if it is in
    /// the queue, green if the pass is done with it: it has left the queue, or no gradient has reached it. It shows the
    /// gradient that it has so far.
    ///
    /// ```
    /// use autobwd::{Tensor, tape::{backward_with, history}};
    /// use autobwd_ops::Math;
    ///
    /// let tape = autobwd::eager();
    /// let x = tape.leaf("x", Tensor::scalar(3.0)?);
    /// let y = x.square().named("y");
    /// let (history, mut pictures) = (history(&y)?, vec![]);
    /// backward_with(&y, None, &mut |queue| pictures.push(history.queue_to_dot(queue)))?;
    /// assert!(pictures[0].contains(r#"label="y\nfloat64 []\n= 9\ngradient 1""#), "{}", pictures[0]);
    /// assert!(pictures[1].contains(r#"label="x\nfloat64 []\n= 3\ngradient 6""#), "{}", pictures[1]);
    /// # Ok::<(), autobwd::Error>(())
    /// ```
    pub fn queue_to_dot(&self, queue: &Queue<'_>) -> String {
        let state = QueueState::new(queue);
        draw::dot(
            &self.program,
            Labels {
                note: &|var| self.note_in(&state, var),
                mark: &|var| Some(state.mark(self.held(var)?)),
                ..Labels::default()
            },
        )
    }

    /// The history during a backward pass as a Mermaid flow chart; otherwise as
    /// [`queue_to_dot`](History::queue_to_dot).
    pub fn queue_to_mermaid(&self, queue: &Queue<'_>) -> String {
        let state = QueueState::new(queue);
        draw::mermaid(
            &self.program,
            Labels {
                note: &|var| self.note_in(&state, var),
                mark: &|var| Some(state.mark(self.held(var)?)),
                ..Labels::default()
            },
        )
    }

    /// The elements of a value, and its gradient so far: the one in the queue, or what a leaf has accumulated.
    fn note_in(&self, state: &QueueState<'_>, var: Var) -> Option<String> {
        let value = self.held(var)?;
        if !is_small(&value.meta()) {
            return None;
        }
        let gradient = match state.entry(value) {
            Some(entry) => entry.derivatives().ok()?,
            None => match value.gradient() {
                Ok(gradient) if value.is_leaf() => vec![gradient.tensor().ok()?],
                _ => vec![],
            },
        };
        let gradient: Vec<String> = gradient.iter().map(elements).collect();
        let gradient = (!gradient.is_empty()).then(|| format!("gradient {}", gradient.join(" + ")));
        let lines = [value.tensor().ok().map(|tensor| format!("= {}", elements(&tensor))), gradient];
        let lines: Vec<String> = lines.into_iter().flatten().collect();
        (!lines.is_empty()).then(|| lines.join("\n"))
    }

    /// Variables are numbered in the order of their values.
    fn held(&self, var: Var) -> Option<&Expr> {
        let at = self.values.binary_search_by_key(&var.index(), |(known, _)| known.index()).ok()?;
        Some(&self.values[at].1)
    }

    fn note(&self, var: Var) -> Option<String> {
        let value = self.held(var)?;
        if !is_small(&value.meta()) {
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

/// Whether the elements of a value, and of its gradient, are shown.
fn is_small(meta: &Meta) -> bool {
    meta.dims.numel().get().is_some_and(|n| n <= 4)
}

/// The elements of a small tensor, in single precision.
fn elements(tensor: &Tensor) -> String {
    let single = |x: &f64| (*x as f32).to_string();
    match &tensor.to_f64s()[..] {
        [x] => single(x),
        all => format!("[{}]", all.iter().map(single).collect::<Vec<_>>().join(", ")),
    }
}

/// The entries of a queue by their keys.
struct QueueState<'q> {
    entries: FxHashMap<QueueKey, QueueEntry<'q>>,
    first: Option<QueueKey>,
}

impl<'q> QueueState<'q> {
    fn new(queue: &'q Queue<'_>) -> QueueState<'q> {
        let entries = queue.iter().map(|entry| (key(entry.value()), entry)).collect();
        QueueState { entries, first: queue.iter().next().map(|entry| key(entry.value())) }
    }

    fn entry(&self, value: &Expr) -> Option<&QueueEntry<'q>> {
        self.entries.get(&key(value.eager_value()?))
    }

    /// Values that were computed after the next one have left the queue, or never come into it.
    fn mark(&self, value: &Expr) -> Mark {
        let Some(value) = value.eager_value().filter(|value| value.requires_grad()) else {
            return Mark::Waiting;
        };
        match self.first {
            Some(first) if key(value) == first => Mark::Next,
            Some(first) if key(value) < first => match self.entries.contains_key(&key(value)) {
                true => Mark::Queued,
                false => Mark::Waiting,
            },
            _ => Mark::Done,
        }
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
        let key = (Arc::as_ptr(value.node()), value.out());
        if let Some(var) = self.vars.get(&key) {
            return *var;
        }
        let own = value.own_name().filter(|name| self.program.find(name).is_none());
        let var = match (own, &value.node().origin) {
            (Some(name), _) => self.program.var(&name),
            (None, NodeOrigin::Source(_)) => {
                self.program.fresh(if value.is_leaf() { "leaf" } else { "constant" })
            }
            (None, _) => self.program.fresh(&value.name()),
        };
        let (dtype, dims) = (value.meta().dtype, value.meta().dims.clone());
        let desc = match value.node().inputs().is_empty() {
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

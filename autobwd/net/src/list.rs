//! `NetOp`: a list of operators that is itself an operator.

use std::iter;

use indexmap::{IndexMap, IndexSet};

use super::Operator;
use autobwd_core::{__private::did_you_mean, Error, ErrorKind, Result};

/// Maximum nesting depth of nets.
const DEEPEST: usize = 64;

/// A list of operators that is itself an operator. Its inputs, outputs and intermediates are determined at
/// construction.
///
/// ```
/// use autobwd::net::{NetOp, Operator};
/// use autobwd_ops::{activation::Tanh, elementwise::Minus};
///
/// let net = NetOp::new("difference", [
///     Operator::of(Tanh { x: "a", out: "h" }),
///     Operator::of(Minus { x: "h", y: "b", out: "y" }),
/// ])?;
/// assert_eq!((net.inputs(), net.outputs(), net.intermediates()), (vec!["a", "b"], vec!["y"], vec!["h"]));
/// # Ok::<(), autobwd::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct NetOp {
    name: String,
    ops: Vec<Operator>,
    inputs: IndexSet<String>,
    outputs: IndexSet<String>,
    intermediates: IndexSet<String>,
    depth: usize,
}

impl NetOp {
    /// A net of these operators, which run in this order.
    ///
    /// # Errors
    /// Nets nested more than 64 deep.
    pub fn new(name: impl Into<String>, ops: impl IntoIterator<Item = Operator>) -> Result<NetOp> {
        let net = NetOp::any_depth(name.into(), ops.into_iter().collect());
        within_depth(net.depth)?;
        Ok(net)
    }

    /// The gradient of the net, or of the operator, of that name.
    pub(super) fn gradient(name: &str, ops: Vec<Operator>) -> NetOp {
        NetOp::any_depth(format!("{name}_grad"), ops)
    }

    fn any_depth(name: String, ops: Vec<Operator>) -> NetOp {
        let mut uses: IndexMap<&str, VariableUse> = IndexMap::new();
        for op in &ops {
            for name in op.inputs() {
                let known = uses.entry(name).or_default();
                known.needed |= !known.written;
                known.open = false;
            }
            let written = op.outputs().into_iter().zip(iter::repeat(true));
            for (name, open) in written.chain(op.intermediates().into_iter().zip(iter::repeat(false))) {
                let known = uses.entry(name).or_default();
                (known.written, known.open) = (true, open);
            }
        }
        let all = |is: fn(&VariableUse) -> bool| {
            uses.iter().filter(|(_, known)| is(known)).map(|(name, _)| name.to_string()).collect()
        };
        let inputs = all(|known| known.needed);
        let (outputs, intermediates) = (all(|known| known.open), all(|known| known.written && !known.open));
        let depth = 1 + ops.iter().map(Operator::depth).max().unwrap_or(0);
        NetOp { name, ops, inputs, outputs, intermediates, depth }
    }

    /// Restricts the outputs to these: the others are not needed outside, and get no upstream gradient.
    ///
    /// # Errors
    /// A name that is not among the outputs: no operator writes it, or an operator of the net reads it.
    pub fn returning<'a>(mut self, outputs: impl IntoIterator<Item = &'a str>) -> Result<NetOp> {
        let kept: IndexSet<String> = outputs.into_iter().map(Into::into).collect();
        if let Some(name) = kept.iter().find(|name| !self.outputs.contains(*name)) {
            let why = match self.intermediates.contains(name) {
                true => "an operator of the net reads it, or a net in it keeps it; return a copy".into(),
                false => format!("no operator writes it{}", did_you_mean(name, self.outputs())),
            };
            let text = format!("net `{}` cannot return `{name}`: {why}", self.name);
            return Err(Error::new(ErrorKind::UnknownVar, text));
        }
        let all = std::mem::replace(&mut self.outputs, kept);
        self.intermediates.extend(all.into_iter().filter(|name| !self.outputs.contains(name)));
        Ok(self)
    }

    /// Its name, for messages.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its operators.
    pub fn ops(&self) -> &[Operator] {
        &self.ops
    }

    /// Variables that it reads before any write.
    pub fn inputs(&self) -> Vec<&str> {
        self.inputs.iter().map(String::as_str).collect()
    }

    /// Variables that it writes and does not read.
    pub fn outputs(&self) -> Vec<&str> {
        self.outputs.iter().map(String::as_str).collect()
    }

    /// Variables that it writes and reads.
    pub fn intermediates(&self) -> Vec<&str> {
        self.intermediates.iter().map(String::as_str).collect()
    }

    pub(super) fn writes(&self, name: &str) -> bool {
        self.outputs.contains(name) || self.intermediates.contains(name)
    }

    /// All variables that it writes.
    pub(super) fn written(&self) -> impl Iterator<Item = &str> {
        self.outputs.iter().chain(&self.intermediates).map(String::as_str)
    }

    pub(super) fn depth(&self) -> usize {
        self.depth
    }
}

/// The uses of a variable so far.
#[derive(Default)]
struct VariableUse {
    /// It is read before it is written.
    needed: bool,
    written: bool,
    /// The last written value has no reader.
    open: bool,
}

/// Rejects trees that are too deep for recursion.
pub(super) fn within_depth(depth: usize) -> Result<()> {
    if depth <= DEEPEST {
        return Ok(());
    }
    Err(Error::new(ErrorKind::Program, format!("nets are nested more than {DEEPEST} deep")))
}

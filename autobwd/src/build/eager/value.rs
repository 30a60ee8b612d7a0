//! Values that were computed at once, and what they were computed from.

use std::{
    fmt,
    panic::Location,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use smallvec::SmallVec;

use super::Ready;
use crate::{Error, ErrorKind, Expr, Meta, Result, Tensor, tensor::Memory};

/// A value with its history, to be sent to another thread: [`Expr::into_value`] and [`Builder::hold`] lead there and back.
///
/// [`Builder::hold`]: crate::Builder::hold
#[derive(Clone)]
pub struct Value {
    pub(crate) node: Arc<Node>,
    /// Which of the node's values.
    pub(crate) out: u32,
    /// Whether it passes for a constant.
    stopped: bool,
}

/// One or several values that came about together.
pub(crate) struct Node {
    /// Nodes are numbered as they are made: whatever a node is made from has a smaller number. What was computed and has no
    /// history has none.
    pub(crate) number: u64,
    pub(crate) made: Made,
    /// What somebody wants to know of its derivatives.
    watches: OnceLock<Box<Mutex<Vec<Watch>>>>,
}

/// How a value came about.
pub(crate) enum Made {
    /// It was given: a leaf, or a constant.
    Given(Box<Given>),
    /// An operator has computed it.
    Computed(Call),
}

/// A value that was given, and may be overwritten.
pub(crate) struct Given {
    pub(crate) name: String,
    pub(crate) meta: Meta,
    /// Whether it is a leaf: its derivative is wanted.
    pub(crate) leaf: bool,
    state: Mutex<State>,
}

struct State {
    memory: Arc<Memory>,
    /// How often it was overwritten, and by whom the last time.
    version: u32,
    by: Option<(&'static str, &'static Location<'static>)>,
}

/// An operator that was run. Its inputs are remembered if any of them has a derivative: this is the history.
pub(crate) struct Call {
    pub(crate) ready: Arc<Ready>,
    pub(crate) site: &'static Location<'static>,
    pub(crate) inputs: SmallVec<[Input; 2]>,
    pub(crate) outputs: SmallVec<[Memory; 1]>,
}

/// What an operator has read, and which version of it.
pub(crate) struct Input {
    pub(crate) value: Value,
    pub(crate) version: u32,
}

/// Changes a derivative that passes by.
pub(crate) type Hook = Arc<dyn Fn(&Expr) -> Result<Expr> + Send + Sync>;

/// What somebody wants of a value, mostly of its derivative.
#[derive(Default)]
pub(crate) struct Watch {
    out: u32,
    pub(crate) name: String,
    pub(crate) derivative: Option<Value>,
    pub(crate) retain: bool,
    pub(crate) hooks: Vec<(u64, Hook)>,
}

/// A value's memory while somebody reads it.
pub(crate) enum Reading<'a> {
    Own(&'a Memory),
    Shared(Arc<Memory>, u32),
}

impl Reading<'_> {
    #[inline]
    pub(crate) fn memory(&self) -> &Memory {
        match self {
            Reading::Own(memory) => memory,
            Reading::Shared(memory, _) => memory,
        }
    }

    #[inline]
    pub(crate) fn version(&self) -> u32 {
        match self {
            Reading::Own(_) => 0,
            Reading::Shared(_, version) => *version,
        }
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Node {
    #[inline]
    pub(crate) fn new(made: Made) -> Node {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = match &made {
            Made::Computed(call) if call.inputs.is_empty() => 0,
            _ => NEXT.fetch_add(1, Ordering::Relaxed),
        };
        Node { number, made, watches: OnceLock::new() }
    }

    #[inline]
    pub(crate) fn call(&self) -> Option<&Call> {
        match &self.made {
            Made::Computed(call) => Some(call),
            Made::Given(_) => None,
        }
    }

    #[inline]
    fn memory(&self, out: u32) -> Reading<'_> {
        match &self.made {
            Made::Computed(call) => Reading::Own(&call.outputs[out as usize]),
            Made::Given(given) => {
                let state = locked(&given.state);
                Reading::Shared(state.memory.clone(), state.version)
            }
        }
    }
}

impl Drop for Node {
    /// Histories are as long as programs: they are taken apart in a loop.
    fn drop(&mut self) {
        let take = |node: &mut Node, rest: &mut Vec<Arc<Node>>| {
            if let Made::Computed(call) = &mut node.made {
                while let Some(input) = call.inputs.pop() {
                    rest.push(input.value.node);
                }
            }
        };
        let mut rest = vec![];
        take(self, &mut rest);
        while let Some(node) = rest.pop() {
            if let Some(mut node) = Arc::into_inner(node) {
                take(&mut node, &mut rest);
            }
        }
    }
}

impl Given {
    pub(crate) fn new(name: String, tensor: Tensor, leaf: bool) -> Box<Given> {
        let meta = tensor.meta();
        let state = State { memory: Arc::new(tensor.into_memory()), version: 0, by: None };
        Box::new(Given { name, meta, leaf, state: Mutex::new(state) })
    }

    pub(crate) fn overwrite(&self, memory: Memory, by: (&'static str, &'static Location<'static>)) {
        let mut state = locked(&self.state);
        state.memory = Arc::new(memory);
        state.version += 1;
        state.by = Some(by);
    }
}

impl From<Made> for Value {
    fn from(made: Made) -> Value {
        Value::of(Arc::new(Node::new(made)), 0)
    }
}

impl Value {
    #[inline]
    pub(crate) fn of(node: Arc<Node>, out: usize) -> Value {
        Value { node, out: out as u32, stopped: false }
    }

    #[inline]
    pub(crate) fn meta(&self) -> &Meta {
        match &self.node.made {
            Made::Given(given) => &given.meta,
            Made::Computed(call) => &call.ready.outputs[self.out as usize],
        }
    }

    /// Whether a derivative with respect to it is wanted, or to something that it was computed from.
    #[inline]
    pub(crate) fn has_derivative(&self) -> bool {
        match &self.node.made {
            _ if self.stopped => false,
            Made::Given(given) => given.leaf,
            Made::Computed(call) => !call.inputs.is_empty() && self.meta().dtype.is_float(),
        }
    }

    #[inline]
    pub(crate) fn is_leaf(&self) -> bool {
        matches!(&self.node.made, Made::Given(given) if given.leaf && !self.stopped)
    }

    pub(crate) fn same(&self, other: &Value) -> bool {
        Arc::ptr_eq(&self.node, &other.node) && self.out == other.out
    }

    #[inline]
    pub(crate) fn read(&self) -> Reading<'_> {
        self.node.memory(self.out)
    }

    /// The name that it was given; else, of what was computed, the operator.
    pub(crate) fn name(&self) -> String {
        let given = self.watched(|w| w.name.clone()).filter(|name| !name.is_empty());
        if let Some(given) = given {
            return given;
        }
        match &self.node.made {
            Made::Given(given) => given.name.clone(),
            Made::Computed(call) => call.ready.desc.ty.to_string(),
        }
    }

    /// The same as a constant; its history is forgotten if nobody else holds it.
    pub(crate) fn constant(mut self) -> Value {
        match Arc::get_mut(&mut self.node).map(|node| &mut node.made) {
            Some(Made::Computed(call)) => call.inputs.clear(),
            _ => self.stopped = true,
        }
        self
    }

    /// Whether it passes for a constant that it is not.
    pub(crate) fn is_stopped(&self) -> bool {
        self.stopped
    }

    /// A copy.
    pub(crate) fn tensor(&self) -> Result<Tensor> {
        Tensor::copy_of(self.read().memory(), 0, self.meta())
    }

    /// Replaces a value that was given.
    ///
    /// # Errors
    /// It was computed; another dtype or shape.
    pub(crate) fn overwrite(
        &self,
        meta: &Meta,
        memory: Memory,
        by: (&'static str, &'static Location<'static>),
    ) -> Result<()> {
        let Made::Given(given) = &self.node.made else {
            let text = format!("{self} was computed; only a value that was given can be overwritten");
            return Err(Error::new(ErrorKind::Slot, text));
        };
        if !given.meta.agrees(meta) {
            let text = format!("`{}` is {meta}, but {self} is {}", meta.slot(), given.meta);
            return Err(Error::new(ErrorKind::Shape, text));
        }
        given.overwrite(memory, by);
        Ok(())
    }

    /// Refuses a value that has been overwritten since `version`.
    pub(crate) fn expect_version(&self, version: u32) -> Result<()> {
        let Made::Given(given) = &self.node.made else { return Ok(()) };
        let state = locked(&given.state);
        if state.version == version {
            return Ok(());
        }
        let by = state.by.map(|(op, at)| format!(", the last time by `{op}` at {}:{}", at.file(), at.line()));
        let text = format!(
            "version {version} of {self} is needed, but it has been overwritten{}: it is at version {}",
            by.unwrap_or_default(),
            state.version
        );
        Err(Error::new(ErrorKind::NoGradient, text))
    }

    /// What somebody wants of its derivative, to be looked at or changed.
    pub(crate) fn watch<T>(&self, look: impl FnOnce(&mut Watch) -> T) -> T {
        let mut watches = locked(self.node.watches.get_or_init(Box::default));
        let at = watches.iter().position(|w| w.out == self.out).unwrap_or_else(|| {
            watches.push(Watch { out: self.out, ..Watch::default() });
            watches.len() - 1
        });
        look(&mut watches[at])
    }

    /// As [`watch`](Value::watch), if anybody wants anything.
    pub(crate) fn watched<T>(&self, look: impl FnOnce(&mut Watch) -> T) -> Option<T> {
        let mut watches = locked(self.node.watches.get()?);
        watches.iter_mut().find(|w| w.out == self.out).map(look)
    }
}
impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.node.made {
            Made::Given(given) if given.name.is_empty() => f.write_str("a constant"),
            Made::Given(given) => write!(f, "`{}`", given.name),
            Made::Computed(call) => {
                let (op, at) = (call.ready.desc.ty, call.site);
                write!(f, "the result of `{op}` at {}:{}", at.file(), at.line())
            }
        }
    }
}
impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}: {}", self.meta())
    }
}

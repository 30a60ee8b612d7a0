//! Eager values and their history, the graph that a backward pass follows.

use std::{
    alloc::{Layout, handle_alloc_error},
    cell::{Cell, RefCell},
    fmt, mem,
    panic::Location,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
};

use smallvec::SmallVec;

use super::{FunctionCall, PreparedOp};
use crate::{
    Error, ErrorKind, Expr, Meta, Result, Tensor,
    tensor::{LINE, Memory},
};

/// An eager value with its history, which can be sent to another thread: [`Expr::into_value`] and [`Builder::hold`]
/// convert both ways.
///
/// [`Builder::hold`]: crate::Builder::hold
#[derive(Clone)]
pub struct Value {
    pub(crate) node: Arc<TapeNode>,
    /// From the lowest bit: whether it is, or is treated as, a constant; its index among the node's values (31 bits);
    /// the version that an operator recorded when it read it (32 bits). One number, so that a value fits into two
    /// registers.
    which: u64,
}

/// A tape node: one or several values that were created together.
#[derive(Debug)]
pub struct TapeNode {
    /// Nodes are numbered in order of creation: every input of a node, of this thread or another, has a smaller number.
    /// Computed values without history have the number 0.
    pub number: u64,
    /// Its origin.
    pub origin: NodeOrigin,
    /// Names, hooks and gradients of its values.
    watches: OnceLock<Box<Mutex<Vec<ValueSettings>>>>,
}

/// The origin of a value.
#[derive(Debug)]
pub enum NodeOrigin {
    /// A leaf or a constant.
    Source(Box<SourceValue>),
    /// The result of an operator.
    Computed(OpCall),
    /// The result of a user-defined function.
    Applied(Box<FunctionCall>),
}

/// A leaf or a constant, which may be overwritten.
pub struct SourceValue {
    /// Its name, or empty.
    pub name: String,
    /// Dtype and shape.
    pub meta: Meta,
    /// Whether it is a leaf: its gradient is wanted.
    pub leaf: bool,
    /// The initial memory of a small value. It stays allocated, so that readers need no lock until the first overwrite.
    first: Option<Arc<Memory>>,
    /// The number of overwrites.
    version: AtomicU32,
    state: Mutex<SourceState>,
}

struct SourceState {
    memory: Arc<Memory>,
    /// The operator that overwrote it last, with its line.
    by: Option<(&'static str, &'static Location<'static>)>,
}

/// A run of an operator. Its inputs are recorded if any of them has a gradient: this is the history.
#[derive(Debug)]
pub struct OpCall {
    /// The prepared operator.
    pub prepared: Arc<PreparedOp>,
    /// The line of the call.
    pub site: &'static Location<'static>,
    /// The inputs, if they are recorded.
    pub inputs: SmallVec<[Value; 2]>,
    /// Memory, by output.
    pub outputs: SmallVec<[Memory; 1]>,
}

/// A function that may change a gradient on its way.
pub type Hook = Arc<dyn Fn(&Expr) -> Expr + Send + Sync>;

/// User settings of a value, mostly for its gradient.
#[derive(Default)]
pub struct ValueSettings {
    out: u32,
    /// The name that the user gave it.
    pub name: String,
    /// Its gradient, if already computed.
    pub derivative: Option<Value>,
    /// Whether its gradient is kept although it is not a leaf.
    pub retain: bool,
    /// Functions that change its gradient, by number.
    pub hooks: Vec<(u64, Hook)>,
}

/// Keeps the memory of values alive while it is read, by value, since the memory of some may be replaced. Empty if none
/// can be.
#[derive(Debug)]
pub struct MemoryGuard(Vec<Option<Arc<Memory>>>);

impl MemoryGuard {
    #[inline]
    /// Keeps the memory of these values.
    pub fn of<'v>(values: impl Iterator<Item = &'v Value> + Clone) -> MemoryGuard {
        match values.clone().all(Value::stays) {
            true => MemoryGuard(vec![]),
            false => MemoryGuard(values.map(Value::shared).collect()),
        }
    }

    /// The memory of the `i`-th value.
    #[inline(always)]
    pub fn memory<'v>(&'v self, i: usize, value: &'v Value) -> Result<&'v Memory> {
        value.memory(self.0.get(i).and_then(Option::as_ref))
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

thread_local! {
    /// Free nodes of a thread, with their last operators: training repeats the same operators, so that the next request
    /// mostly finds its own.
    static FREE_NODES: RefCell<Vec<Arc<TapeNode>>> = const { RefCell::new(vec![]) };
}

impl TapeNode {
    /// The limit of free nodes.
    const MOST_FREE: usize = 1 << 12;

    /// A node without other owners, for an operator that is about to run: it has neither inputs nor outputs.
    #[inline]
    pub fn of(ready: &Arc<PreparedOp>, site: &'static Location<'static>) -> Arc<TapeNode> {
        let free = FREE_NODES.try_with(|free| free.try_borrow_mut().ok()?.pop()).ok().flatten();
        free.unwrap_or_else(|| {
            let call =
                OpCall { prepared: ready.clone(), site, inputs: SmallVec::new(), outputs: SmallVec::new() };
            Arc::new(TapeNode { number: 0, origin: NodeOrigin::Computed(call), watches: OnceLock::new() })
        })
    }

    #[inline]
    /// The operator that was run, if any.
    pub fn call(&self) -> Option<&OpCall> {
        match &self.origin {
            NodeOrigin::Computed(call) => Some(call),
            NodeOrigin::Source(_) | NodeOrigin::Applied(_) => None,
        }
    }

    /// The recorded inputs.
    pub fn inputs(&self) -> &[Value] {
        match &self.origin {
            NodeOrigin::Computed(call) => &call.inputs,
            NodeOrigin::Applied(applied) => &applied.inputs,
            NodeOrigin::Source(_) => &[],
        }
    }

    /// A node for a call of a user-defined function; it has a history if it records inputs.
    pub fn applied(applied: FunctionCall) -> Arc<TapeNode> {
        let least = applied.inputs.iter().map(|input| input.node.number + 1).max();
        let number = least.map_or(0, next_number);
        Arc::new(TapeNode {
            number,
            origin: NodeOrigin::Applied(Box::new(applied)),
            watches: OnceLock::new(),
        })
    }
}

/// The next node number, at least `least`.
#[inline]
fn next_number(least: u64) -> u64 {
    thread_local! {
        static NEXT: Cell<u64> = const { Cell::new(1) };
    }
    let number = NEXT.get().max(least);
    NEXT.set(number + 1);
    number
}

impl Drop for TapeNode {
    /// Drops the history in a loop: it may be as long as a program, too long for recursion.
    fn drop(&mut self) {
        let inputs = match &mut self.origin {
            NodeOrigin::Computed(call) => &mut call.inputs,
            NodeOrigin::Applied(applied) => &mut applied.inputs,
            NodeOrigin::Source(_) => return,
        };
        while let Some(Value { mut node, .. }) = inputs.pop() {
            // The count shows other owners without a lock.
            let own = if Arc::strong_count(&node) == 1 { Arc::get_mut(&mut node) } else { None };
            if let Some(TapeNode { origin: NodeOrigin::Computed(last), watches, .. }) = own {
                last.move_inputs(inputs);
                last.outputs.clear();
                watches.take();
                let keep = |free: &RefCell<Vec<_>>| match free.try_borrow_mut() {
                    Ok(mut free) if free.len() < TapeNode::MOST_FREE => free.push(node),
                    _ => {}
                };
                // Fails while the thread ends; the node is then freed.
                let _ = FREE_NODES.try_with(keep);
            } else if let Some(mut last) = Arc::into_inner(node) {
                match &mut last.origin {
                    NodeOrigin::Computed(last) => last.move_inputs(inputs),
                    NodeOrigin::Applied(last) => inputs.append(&mut last.inputs),
                    NodeOrigin::Source(_) => {}
                }
            }
        }
    }
}

impl OpCall {
    /// Records the inputs of the operator. Returns the number of its node.
    #[inline]
    pub fn record_inputs(&mut self, inputs: &[&Value]) -> u64 {
        let mut least = 0;
        for input in inputs {
            least = least.max(input.node.number + 1);
            self.inputs.push(input.remembered());
        }
        next_number(least)
    }

    /// Moves its inputs to a list.
    #[inline]
    fn move_inputs(&mut self, others: &mut SmallVec<[Value; 2]>) {
        if others.is_empty() {
            mem::swap(&mut self.inputs, others);
        } else {
            others.append(&mut self.inputs);
        }
    }
}

impl SourceValue {
    /// A leaf or constant of this name.
    pub fn new(name: String, tensor: Tensor, leaf: bool) -> Box<SourceValue> {
        let meta = tensor.meta();
        // As `Vec::clone` when memory runs out.
        let memory = tensor.into_memory().unwrap_or_else(|_| handle_alloc_error(Layout::new::<Tensor>()));
        SourceValue::of(name, meta, memory, leaf)
    }

    /// As [`new`](SourceValue::new), from memory.
    pub fn of(name: String, meta: Meta, memory: Memory, leaf: bool) -> Box<SourceValue> {
        let memory = Arc::new(memory);
        let first = (memory.len() <= LINE).then(|| memory.clone());
        let state = Mutex::new(SourceState { memory, by: None });
        Box::new(SourceValue { name, meta, leaf, first, version: AtomicU32::new(0), state })
    }

    /// Replaces its memory.
    pub fn overwrite(&self, memory: Memory, by: (&'static str, &'static Location<'static>)) {
        let mut state = locked(&self.state);
        *state = SourceState { memory: Arc::new(memory), by: Some(by) };
        self.version.fetch_add(1, Ordering::Release);
    }
}

impl From<Box<SourceValue>> for Value {
    fn from(given: Box<SourceValue>) -> Value {
        let (number, made) = (next_number(0), NodeOrigin::Source(given));
        Value::of(Arc::new(TapeNode { number, origin: made, watches: OnceLock::new() }), 0)
    }
}

impl Value {
    #[inline]
    pub(crate) fn of(node: Arc<TapeNode>, out: usize) -> Value {
        let constant = match &node.origin {
            NodeOrigin::Source(given) => !given.leaf,
            NodeOrigin::Computed(call) => node.number == 0 || !call.prepared.outputs[out].dtype.is_float(),
            NodeOrigin::Applied(_) => node.number == 0,
        };
        Value { node, which: u64::from((out as u32) << 1 | u32::from(constant)) }
    }

    /// The node that computed it.
    #[inline]
    pub(crate) fn node(&self) -> &Arc<TapeNode> {
        &self.node
    }

    fn version(&self) -> u32 {
        (self.which >> 32) as u32
    }

    /// Its index among the node's values.
    #[inline]
    pub fn out(&self) -> u32 {
        self.which as u32 >> 1
    }

    /// Its dtype and shape.
    #[inline]
    pub fn meta(&self) -> &Meta {
        match &self.node.origin {
            NodeOrigin::Source(given) => &given.meta,
            NodeOrigin::Computed(call) => &call.prepared.outputs[self.out() as usize],
            NodeOrigin::Applied(applied) => &applied.meta,
        }
    }

    /// Whether it is a leaf or was computed from one.
    #[inline]
    pub fn requires_grad(&self) -> bool {
        self.which & 1 == 0
    }

    /// Whether it is a leaf, which accumulates gradients.
    #[inline]
    pub fn is_leaf(&self) -> bool {
        self.requires_grad() && matches!(self.node.origin, NodeOrigin::Source(_))
    }

    /// Whether both are the same value of the same node.
    pub fn same(&self, other: &Value) -> bool {
        Arc::ptr_eq(&self.node, &other.node) && self.out() == other.out()
    }

    /// Whether its memory stays valid even if the value is overwritten now.
    #[inline]
    fn stays(&self) -> bool {
        match &self.node.origin {
            NodeOrigin::Source(given) => given.first.is_some() && given.version.load(Ordering::Acquire) == 0,
            NodeOrigin::Computed(_) | NodeOrigin::Applied(_) => true,
        }
    }

    /// Its memory; `shared` is required for memory that may be replaced.
    #[inline(always)]
    pub fn memory<'v>(&'v self, shared: Option<&'v Arc<Memory>>) -> Result<&'v Memory> {
        match (&self.node.origin, shared) {
            (_, Some(shared)) => Ok(shared),
            (NodeOrigin::Computed(call), None) => Ok(&call.outputs[self.out() as usize]),
            (NodeOrigin::Applied(applied), None) => Ok(&applied.memory),
            (NodeOrigin::Source(given), None) => {
                given.first.as_deref().ok_or_else(|| Error::internal("memory without an owner"))
            }
        }
    }

    /// Its current memory, if that may be replaced.
    pub fn shared(&self) -> Option<Arc<Memory>> {
        match &self.node.origin {
            NodeOrigin::Source(given) if !self.stays() => Some(locked(&given.state).memory.clone()),
            _ => None,
        }
    }

    /// The value with its current version, for an operator that is about to read it.
    #[inline]
    pub fn remembered(&self) -> Value {
        let version = match &self.node.origin {
            NodeOrigin::Source(given) => given.version.load(Ordering::Acquire),
            NodeOrigin::Computed(_) | NodeOrigin::Applied(_) => 0,
        };
        Value { node: self.node.clone(), which: u64::from(version) << 32 | u64::from(self.which as u32) }
    }

    /// The name that the user gave it, if any.
    pub fn own_name(&self) -> Option<String> {
        let given = || match &self.node.origin {
            NodeOrigin::Source(given) => Some(given.name.clone()),
            NodeOrigin::Computed(_) | NodeOrigin::Applied(_) => None,
        };
        let watched = self.settings(|w| w.name.clone()).filter(|name| !name.is_empty());
        watched.or_else(given).filter(|name| !name.is_empty())
    }

    /// The name that the user gave it; otherwise the name of the operator or function that computed it.
    pub fn name(&self) -> String {
        if let Some(own) = self.own_name() {
            return own;
        }
        match &self.node.origin {
            NodeOrigin::Source(_) => String::new(),
            NodeOrigin::Computed(call) => call.prepared.desc.ty.to_string(),
            NodeOrigin::Applied(applied) => applied.function.name().to_string(),
        }
    }

    /// The same value as a constant; its history is dropped if it has no other owner.
    pub fn constant(mut self) -> Value {
        match Arc::get_mut(&mut self.node) {
            Some(TapeNode { number, origin: NodeOrigin::Computed(call), .. }) => {
                *number = 0;
                call.inputs.clear();
            }
            Some(TapeNode { number, origin: NodeOrigin::Applied(applied), .. }) => {
                *number = 0;
                applied.inputs.clear();
            }
            _ => {}
        }
        self.which |= 1;
        self
    }

    /// A copy.
    pub fn tensor(&self) -> Result<Tensor> {
        Tensor::copy_of(self.memory(self.shared().as_ref())?, 0, self.meta())
    }

    /// Overwrites a leaf or a constant.
    ///
    /// # Errors
    /// A computed value; another dtype or shape.
    pub fn overwrite(
        &self,
        meta: &Meta,
        memory: Memory,
        by: (&'static str, &'static Location<'static>),
    ) -> Result<()> {
        let NodeOrigin::Source(given) = &self.node.origin else {
            let text = format!("{self} cannot be overwritten: only leaves and constants can");
            return Err(Error::new(ErrorKind::Slot, text));
        };
        if !given.meta.agrees(meta) {
            let text = format!("`{}` is {meta}, but {self} is {}", meta.slot(), given.meta);
            return Err(Error::new(ErrorKind::Shape, text));
        }
        given.overwrite(memory, by);
        Ok(())
    }

    /// Returns an error for a value that was overwritten after an operator recorded it.
    #[inline]
    pub fn expect_version(&self) -> Result<()> {
        match &self.node.origin {
            NodeOrigin::Source(given) if given.version.load(Ordering::Acquire) != self.version() => {
                Err(self.overwritten(given))
            }
            _ => Ok(()),
        }
    }

    #[cold]
    fn overwritten(&self, given: &SourceValue) -> Error {
        let by = locked(&given.state).by;
        let by = by.map(|(op, at)| format!(", the last time by `{op}` at {}:{}", at.file(), at.line()));
        let text = format!(
            "version {} of {self} is needed, but it has been overwritten{}: it is at version {}",
            self.version(),
            by.unwrap_or_default(),
            given.version.load(Ordering::Acquire)
        );
        Error::new(ErrorKind::NoGradient, text)
    }

    /// Accesses its settings, which are created if missing.
    pub fn with_settings<T>(&self, look: impl FnOnce(&mut ValueSettings) -> T) -> T {
        let mut watches = locked(self.node.watches.get_or_init(Box::default));
        let at = watches.iter().position(|w| w.out == self.out()).unwrap_or_else(|| {
            watches.push(ValueSettings { out: self.out(), ..ValueSettings::default() });
            watches.len() - 1
        });
        look(&mut watches[at])
    }

    #[inline]
    pub(crate) fn has_settings(&self) -> bool {
        self.node.watches.get().is_some()
    }

    /// As [`with_settings`](Value::with_settings), if settings exist.
    pub fn settings<T>(&self, look: impl FnOnce(&mut ValueSettings) -> T) -> Option<T> {
        let mut watches = locked(self.node.watches.get()?);
        watches.iter_mut().find(|w| w.out == self.out()).map(look)
    }
}
impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.node.origin {
            NodeOrigin::Source(given) if given.name.is_empty() => f.write_str("a constant"),
            NodeOrigin::Source(given) => write!(f, "`{}`", given.name),
            NodeOrigin::Computed(call) => {
                let (op, at) = (call.prepared.desc.ty, call.site);
                write!(f, "the result of `{op}` at {}:{}", at.file(), at.line())
            }
            NodeOrigin::Applied(applied) => write!(f, "the result of {}", applied.describe()),
        }
    }
}
impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}: {}", self.meta())
    }
}

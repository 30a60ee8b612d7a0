//! The eager engine: runs operators one by one.

use std::{
    any::Any,
    cell::{Cell, RefCell},
    mem,
    panic::Location,
    sync::Arc,
};

use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use autobwd_core::{
    __private::{
        DescribeFn, Engine, FunctionCall, Memory, MemoryGuard, NodeOrigin, OpCall, PreparedOp, TapeNode,
        describe_function, internals::*,
    },
    Builder, Cx, Error, ErrorKind, GradKind, Meta, OpContext, OpKey, Result, Tensor,
    graph_builder::{Function, Value},
    tensor::ToF64,
    with_dtype,
};

use crate::prepared;

/// Maximum number of cached operators: functions with ever new shapes must not fill the memory.
const MOST_READY: usize = 1 << 13;

/// A callback for every executed operator, with its inputs and outputs.
pub(crate) type Listener = Box<dyn FnMut(&PreparedOp, &[&Value], &[Value], &'static Location<'static>)>;

/// The engine of an eager builder.
pub(crate) fn engine(of: &Builder) -> Result<&Eager> {
    let eager = of.engine().and_then(|engine| (engine as &dyn Any).downcast_ref());
    eager.ok_or_else(|| Error::new(ErrorKind::Program, "an eager builder is needed, from `autobwd::eager()`"))
}

/// The engine: runs operators one by one, as soon as they are described.
pub(crate) struct Eager {
    cx: Cx,
    /// Cache of prepared operators by op key.
    pub(crate) cache: RefCell<FxHashMap<OpKey, Arc<PreparedOp>>>,
    /// Whether operators record their inputs on the tape.
    pub(crate) records: Cell<bool>,
    pub(crate) checks_finite: Cell<bool>,
    /// The number of executed operators.
    pub(crate) runs: Cell<u64>,
    pub(crate) listener: RefCell<Option<Listener>>,
}

impl Eager {
    pub(crate) fn new(threads: usize) -> Eager {
        Eager {
            cx: Cx::new(threads),
            cache: RefCell::default(),
            records: Cell::new(true),
            checks_finite: Cell::new(false),
            runs: Cell::new(0),
            listener: RefCell::default(),
        }
    }

    /// Runs the operator with this op key and description; `inputs` by argument.
    ///
    /// # Errors
    /// Slots, attributes or inputs that do not fit, with the operator; data that it rejects.
    pub(crate) fn call(
        &self,
        builder: &Builder,
        words: &mut OpKey,
        desc: DescribeFn<'_>,
        inputs: &[&Value],
        site: &'static Location<'static>,
    ) -> Result<Arc<TapeNode>> {
        let known = self.run_known(words, inputs, &[], site);
        known.unwrap_or_else(|| self.run_described(builder, words, desc, inputs, &[], site))
    }

    /// The prepared operator of this op key, which includes the input shapes.
    ///
    /// # Errors
    /// Slots, attributes or inputs that do not fit, with the operator.
    pub(crate) fn ready(
        &self,
        builder: &Builder,
        words: &OpKey,
        desc: DescribeFn<'_>,
        inputs: &[Meta],
        site: &'static Location<'static>,
    ) -> Result<Arc<PreparedOp>> {
        if let Some(ready) = self.cache.borrow().get(words) {
            return Ok(ready.clone());
        }
        let desc = desc()?;
        let named = || OpContext::called("operator", desc.ty.as_str(), "run", site, &[]);
        let ready = Arc::new(prepared::prepare(builder.ops()?, &desc, inputs).map_err(|e| e.at_op(named))?);
        // A running kernel may have called the engine recursively.
        if let Ok(mut cache) = self.cache.try_borrow_mut() {
            if cache.len() >= MOST_READY {
                cache.clear();
            }
            cache.insert(words.clone(), ready.clone());
        }
        Ok(ready)
    }

    /// As [`call`](Eager::call), for a prepared operator.
    pub(crate) fn run(
        &self,
        ready: &Arc<PreparedOp>,
        inputs: &[&Value],
        into: &[(usize, &Value)],
        site: &'static Location<'static>,
    ) -> Result<Arc<TapeNode>> {
        let records = self.records.get()
            && ready.passes_derivatives
            && inputs.iter().any(|value| value.requires_grad());
        let mut node = TapeNode::of(ready, site);
        let Some(TapeNode { number, origin: NodeOrigin::Computed(call), .. }) = Arc::get_mut(&mut node)
        else {
            return Err(Error::internal("a new node that is shared"));
        };
        if !Arc::ptr_eq(&call.prepared, ready) {
            call.prepared = ready.clone();
        }
        (*number, call.site) = (0, site);
        if records {
            refuse_leaves(ready, into).map_err(|e| e.at_op(|| ready.describe(site)))?;
            *number = call.record_inputs(inputs);
        }
        for size in &ready.sizes {
            call.outputs.push(Memory::any(*size)?);
        }
        let reading = MemoryGuard::of(inputs.iter().copied());
        self.compute(ready, |i| reading.memory(i, inputs[i]), call.outputs.iter_mut(), site)?;
        if ready.outputs.iter().any(Meta::is_decided) {
            call.prepared = Arc::new(prepared::decided(ready, &mut call.outputs)?);
        }
        let ready = &call.prepared.clone();
        self.check(ready, call.outputs.iter(), site)?;
        if into.is_empty() && !self.is_traced() {
            return Ok(node);
        }
        let mut overwriting: SmallVec<[(&Value, Memory); 1]> = SmallVec::new();
        for (out, value) in into {
            let memory = match records {
                true => Tensor::memory_of(&call.outputs[*out], &ready.outputs[*out])?,
                false => mem::take(&mut call.outputs[*out]),
            };
            overwriting.push((value, memory));
        }
        self.tell(&node, inputs, into, overwriting)?;
        Ok(node)
    }

    /// Calls a user-defined function.
    ///
    /// # Errors
    /// The errors of the function; a call during a trace; a value that is not finite, if that is checked.
    pub(crate) fn apply(
        &self,
        function: Arc<dyn Function>,
        inputs: &[&Value],
        site: &'static Location<'static>,
    ) -> Result<Value> {
        let named = || describe_function(&*function, site);
        if self.is_traced() {
            let text = "a program cannot contain a Rust function, so a traced function cannot call one: write an \
                        operator instead";
            return Err(Error::new(ErrorKind::Program, text).at_op(named));
        }
        let tensors = inputs.iter().map(|input| input.tensor()).collect::<Result<Vec<_>>>()?;
        let output = function.forward(&tensors).map_err(|e| e.at_op(named))?;
        let (meta, memory) = (output.meta(), output.into_memory()?);
        if self.checks_finite.get() && meta.dtype.is_float() {
            finite(&memory, &meta.clone().in_slot("output")).map_err(|e| e.at_op(named))?;
        }
        let records = self.records.get() && meta.dtype.is_float() && inputs.iter().any(|i| i.requires_grad());
        let inputs =
            if records { inputs.iter().map(|input| input.remembered()).collect() } else { SmallVec::new() };
        Ok(Value::of(TapeNode::applied(FunctionCall { function, site, inputs, meta, memory }), 0))
    }

    /// Computes the outputs of an operator into given memory, without recording.
    ///
    /// # Errors
    /// Data that it rejects; no memory.
    #[inline]
    pub(crate) fn compute<'m>(
        &self,
        ready: &PreparedOp,
        input: impl Fn(usize) -> Result<&'m Memory>,
        outputs: impl Iterator<Item = &'m mut Memory>,
        site: &'static Location<'static>,
    ) -> Result<()> {
        prepared::run(ready, &self.cx, input, outputs).map_err(|e| e.at_op(|| ready.describe(site)))?;
        self.runs.set(self.runs.get() + 1);
        Ok(())
    }

    /// As [`compute`](Eager::compute), for two inputs and one output that overwrites the first input.
    ///
    /// # Errors
    /// The errors of `compute` and of [`check`](Eager::check).
    pub(crate) fn compute_over(
        &self,
        ready: &PreparedOp,
        first: &mut Memory,
        second: &Memory,
        site: &'static Location<'static>,
    ) -> Result<()> {
        prepared::run_over(ready, &self.cx, first, second).map_err(|e| e.at_op(|| ready.describe(site)))?;
        self.runs.set(self.runs.get() + 1);
        self.check(ready, [&*first].into_iter(), site)
    }

    /// Checks outputs of an operator for NaN and infinities, if enabled.
    ///
    /// # Errors
    /// An output is not finite.
    #[inline]
    pub(crate) fn check<'m>(
        &self,
        ready: &PreparedOp,
        outputs: impl Iterator<Item = &'m Memory>,
        site: &'static Location<'static>,
    ) -> Result<()> {
        if !self.checks_finite.get() {
            return Ok(());
        }
        let mut values = outputs.zip(&ready.outputs).filter(|(_, meta)| meta.dtype.is_float());
        values.try_for_each(|(m, meta)| finite(m, meta)).map_err(|e| e.at_op(|| ready.describe(site)))
    }

    /// Whether results are neither recorded nor traced.
    pub(crate) fn skips_recording(&self) -> bool {
        !self.records.get() && !self.is_traced()
    }

    /// Reports an executed operator to the listener, and updates overwritten values.
    fn tell(
        &self,
        node: &Arc<TapeNode>,
        inputs: &[&Value],
        into: &[(usize, &Value)],
        overwriting: SmallVec<[(&Value, Memory); 1]>,
    ) -> Result<()> {
        let Some(OpCall { prepared: ready, site, .. }) = node.call() else { return Ok(()) };
        if let Some(listener) = &mut *self.listener.borrow_mut() {
            let made = (0..ready.outputs.len()).map(|out| {
                let overwritten = into.iter().find(|(o, _)| *o == out).map(|(_, value)| (*value).clone());
                overwritten.unwrap_or_else(|| Value::of(node.clone(), out))
            });
            listener(ready, inputs, &made.collect::<Vec<_>>(), site);
        }
        for ((value, memory), (out, _)) in overwriting.into_iter().zip(into) {
            let overwritten = value.overwrite(&ready.outputs[*out], memory, (ready.desc.ty.as_str(), site));
            overwritten.map_err(|e| e.at_op(|| ready.describe(site)))?;
        }
        Ok(())
    }
}

/// Rejects an operator with a gradient that overwrites a leaf.
fn refuse_leaves(ready: &PreparedOp, into: &[(usize, &Value)]) -> Result<()> {
    match into.iter().find(|(_, value)| value.is_leaf()) {
        Some((_, leaf)) if !matches!(ready.info.grad_kind(), GradKind::None(_)) => {
            let text = format!(
                "the leaf {leaf} cannot be overwritten by a recorded operator, whose gradient would be lost; use \
                 `no_grad`"
            );
            Err(Error::new(ErrorKind::NoGradient, text))
        }
        _ => Ok(()),
    }
}

fn finite(memory: &Memory, meta: &Meta) -> Result<()> {
    let tensor = Tensor::copy_of(memory, 0, meta)?;
    let ok = with_dtype!(meta.dtype, T => tensor.slice::<T>()?.iter().all(|x| x.to_f64().is_finite()));
    let text = || format!("`{}` is not finite", meta.slot());
    if ok { Ok(()) } else { Err(Error::new(ErrorKind::NotFinite, text())) }
}

//! What runs operators, one by one.

use std::{
    cell::{Cell, RefCell},
    panic::Location,
    sync::Arc,
};

use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::{Call, Input, Made, Node, Reading, Ready, Value, value::Given};
use crate::{
    Cx, Error, ErrorKind, GradKind, Meta, OpInfoMap, Result, Tensor, Var, Words,
    build::MakeDesc,
    tensor::{Memory, ToF64},
    with_dtype,
};

/// How many operators are kept ready: functions of ever new shapes must not fill the memory.
const MOST_READY: usize = 1 << 13;

/// Told of every operator that was run, with what it has read and made.
pub(crate) type Listener = Box<dyn FnMut(&Ready, &[&Value], &[Value], &'static Location<'static>)>;

/// What an eager [`Builder`](crate::Builder) has beside the names of a program.
pub(crate) struct Eager {
    cx: Cx,
    /// The operators that were run so far.
    cache: RefCell<FxHashMap<Words, Arc<Ready>>>,
    /// Parameters and other values that have a name.
    pub(crate) kept: RefCell<FxHashMap<Var, Value>>,
    /// Whether operators remember what they have read.
    pub(crate) records: Cell<bool>,
    pub(crate) checks_finite: Cell<bool>,
    /// How many operators were run.
    pub(crate) runs: Cell<u64>,
    pub(crate) listener: RefCell<Option<Listener>>,
}

impl Eager {
    pub(crate) fn new(threads: usize) -> Eager {
        Eager {
            cx: Cx::new(threads),
            cache: RefCell::default(),
            kept: RefCell::default(),
            records: Cell::new(true),
            checks_finite: Cell::new(false),
            runs: Cell::new(0),
            listener: RefCell::default(),
        }
    }

    /// Runs the operator that has these words, and this description; `inputs` by argument; `into` are the outputs, by
    /// number, that overwrite a value.
    ///
    /// # Errors
    /// Whatever does not fit, with the operator; data that it cannot take.
    pub(crate) fn call(
        &self,
        ops: &OpInfoMap,
        words: &mut Words,
        desc: MakeDesc<'_>,
        inputs: &[&Value],
        into: &[(usize, &Value)],
        site: &'static Location<'static>,
    ) -> Result<Arc<Node>> {
        inputs.iter().for_each(|value| words.meta(value.meta()));
        let known = self.cache.borrow().get(words).cloned();
        let ready = match known {
            Some(ready) => ready,
            None => {
                let (desc, metas) = (desc()?, inputs.iter().map(|value| value.meta().clone()));
                let named = || format!("operator `{}` (run at {}:{})", desc.ty, site.file(), site.line());
                let ready = Ready::new(ops, &desc, &metas.collect::<Vec<_>>());
                let ready = Arc::new(ready.map_err(|e| e.at_op(named))?);
                let mut cache = self.cache.borrow_mut();
                if cache.len() >= MOST_READY {
                    cache.clear();
                }
                cache.insert(words.clone(), ready.clone());
                ready
            }
        };
        self.run(ready, inputs, into, site)
    }

    /// As [`call`](Eager::call), of an operator that is ready.
    pub(crate) fn run(
        &self,
        ready: Arc<Ready>,
        inputs: &[&Value],
        into: &[(usize, &Value)],
        site: &'static Location<'static>,
    ) -> Result<Arc<Node>> {
        let records = self.records.get()
            && ready.passes_derivatives
            && inputs.iter().any(|value| value.has_derivative());
        let mut read = SmallVec::<[Reading<'_>; 3]>::new();
        for value in inputs {
            read.push(value.read());
        }
        let mut outputs = SmallVec::<[Memory; 1]>::new();
        for size in &ready.sizes {
            outputs.push(Memory::any(*size)?);
        }
        let run = |outputs: &mut [Memory]| {
            if let Some((_, leaf)) = into.iter().find(|(_, value)| value.is_leaf())
                && records
                && !matches!(ready.info.grad_kind(), GradKind::None)
            {
                let text =
                    format!("the leaf {leaf} would lose the derivative of what overwrites it; use `no_grad`");
                return Err(Error::new(ErrorKind::NoGradient, text));
            }
            ready.run(&self.cx, &read, outputs)?;
            if self.checks_finite.get() {
                let values = outputs.iter().zip(&ready.outputs);
                values.filter(|(_, meta)| meta.dtype.is_float()).try_for_each(|(m, meta)| finite(m, meta))?;
            }
            Ok(())
        };
        run(&mut outputs).map_err(|e| e.at_op(|| ready.describe(site)))?;
        self.runs.set(self.runs.get() + 1);
        let mut overwriting: SmallVec<[(&Value, Memory); 1]> = SmallVec::new();
        for (out, value) in into {
            let memory = match records {
                true => Tensor::copy_of(&outputs[*out], 0, &ready.outputs[*out])?.into_memory(),
                false => std::mem::replace(&mut outputs[*out], Memory::any(0)?),
            };
            overwriting.push((value, memory));
        }
        let mut remembered = SmallVec::new();
        if records {
            for (value, read) in inputs.iter().zip(&read) {
                remembered.push(Input { value: (*value).clone(), version: read.version() });
            }
        }
        let node = Arc::new(Node::new(Made::Computed(Call { ready, site, inputs: remembered, outputs })));
        if !into.is_empty() || self.listener.borrow().is_some() {
            self.tell(&node, inputs, into, overwriting)?;
        }
        Ok(node)
    }

    /// Whoever listens hears of an operator that was run; what it overwrites is overwritten.
    fn tell(
        &self,
        node: &Arc<Node>,
        inputs: &[&Value],
        into: &[(usize, &Value)],
        overwriting: SmallVec<[(&Value, Memory); 1]>,
    ) -> Result<()> {
        let Some(Call { ready, site, .. }) = node.call() else { return Ok(()) };
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

    /// The named value `var`.
    pub(crate) fn keep(&self, var: Var, name: String, tensor: Tensor, leaf: bool) -> Value {
        let value = Value::from(Made::Given(Given::new(name, tensor, leaf)));
        self.kept.borrow_mut().insert(var, value.clone());
        value
    }
}

fn finite(memory: &Memory, meta: &Meta) -> Result<()> {
    let tensor = Tensor::copy_of(memory, 0, meta)?;
    let ok = with_dtype!(meta.dtype, T => tensor.slice::<T>()?.iter().all(|x| x.to_f64().is_finite()));
    let text = || format!("`{}` is not finite", meta.slot());
    if ok { Ok(()) } else { Err(Error::new(ErrorKind::NotFinite, text())) }
}

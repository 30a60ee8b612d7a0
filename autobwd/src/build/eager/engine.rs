//! What runs operators, one by one.

use std::{
    cell::{Cell, RefCell},
    panic::Location,
    sync::Arc,
};

use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::{Call, Input, Made, Node, Reading, Ready, Value, ready::Cache, value::Given};
use crate::{
    Cx, Error, ErrorKind, GradKind, Meta, OpDesc, OpInfoMap, Result, Tensor, Var,
    tensor::{Memory, ToF64},
    with_dtype,
};

/// Told of every operator that was run, with what it has read and made.
pub(crate) type Listener = Box<dyn FnMut(&Ready, &[Value], &[Value], &'static Location<'static>)>;

/// What an eager [`Builder`](crate::Builder) has beside the names of a program.
pub(crate) struct Eager {
    cx: Cx,
    cache: RefCell<Cache>,
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

    /// Runs an operator: `inputs` by argument; `into` are the outputs, by number, that overwrite a value.
    ///
    /// # Errors
    /// Whatever does not fit, with the operator; data that it cannot take.
    pub(crate) fn call(
        &self,
        ops: &OpInfoMap,
        desc: &OpDesc,
        inputs: SmallVec<[Value; 2]>,
        into: &[(usize, Value)],
        site: &'static Location<'static>,
    ) -> Result<Arc<Node>> {
        let metas = || inputs.iter().map(Value::meta);
        let make = || {
            let metas: Vec<Meta> = metas().cloned().collect();
            let named = || format!("operator `{}` (run at {}:{})", desc.ty, site.file(), site.line());
            Ready::new(ops, desc, &metas).map_err(|e| e.at_op(named))
        };
        let ready = self.cache.borrow_mut().get(desc, metas(), make)?;
        self.run(&ready, inputs, into, site)
    }

    /// As [`call`](Eager::call), of an operator that is ready.
    pub(crate) fn run(
        &self,
        ready: &Arc<Ready>,
        inputs: SmallVec<[Value; 2]>,
        into: &[(usize, Value)],
        site: &'static Location<'static>,
    ) -> Result<Arc<Node>> {
        let records =
            self.records.get() && ready.passes_derivatives() && inputs.iter().any(Value::has_derivative);
        let read: SmallVec<[Reading<'_>; 4]> = inputs.iter().map(Value::read).collect();
        let run = || {
            if let Some((_, leaf)) = into.iter().find(|(_, value)| value.is_leaf())
                && records
                && !matches!(ready.info.grad_kind(), GradKind::None)
            {
                let text =
                    format!("the leaf {leaf} would lose the derivative of what overwrites it; use `no_grad`");
                return Err(Error::new(ErrorKind::NoGradient, text));
            }
            let outputs = ready.run(&self.cx, &read)?;
            if self.checks_finite.get() {
                let values = outputs.iter().zip(&ready.outputs);
                values.filter(|(_, meta)| meta.dtype.is_float()).try_for_each(|(m, meta)| finite(m, meta))?;
            }
            Ok(outputs)
        };
        let mut outputs = run().map_err(|e| e.at_op(|| ready.describe(site)))?;
        self.runs.set(self.runs.get() + 1);
        let versions: SmallVec<[u32; 4]> = read.iter().map(Reading::version).collect();
        drop(read);
        let mut overwriting: SmallVec<[(&Value, Memory); 1]> = SmallVec::new();
        for (out, value) in into {
            let memory = match records {
                true => Tensor::copy_of(&outputs[*out], 0, &ready.outputs[*out])?.into_memory(),
                false => std::mem::replace(&mut outputs[*out], Memory::any(0)?),
            };
            overwriting.push((value, memory));
        }
        let mut listener = self.listener.borrow_mut();
        let heard = listener.is_some().then(|| inputs.clone());
        let inputs = match records {
            true => {
                inputs.into_iter().zip(versions).map(|(value, version)| Input { value, version }).collect()
            }
            false => SmallVec::new(),
        };
        let node = Arc::new(Node::new(Made::Computed(Call { ready: ready.clone(), site, inputs, outputs })));
        if let (Some(listener), Some(inputs)) = (&mut *listener, heard) {
            let made = (0..ready.outputs.len()).map(|out| {
                let overwritten = into.iter().find(|(o, _)| *o == out).map(|(_, value)| value.clone());
                overwritten.unwrap_or_else(|| Value::of(node.clone(), out))
            });
            listener(ready, &inputs, &made.collect::<Vec<_>>(), site);
        }
        for ((value, memory), (out, _)) in overwriting.into_iter().zip(into) {
            let overwritten = value.overwrite(&ready.outputs[*out], memory, (ready.desc.ty.as_str(), site));
            overwritten.map_err(|e| e.at_op(|| ready.describe(site)))?;
        }
        Ok(node)
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

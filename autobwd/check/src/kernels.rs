//! Checks of single kernels, on memory filled with garbage.

use std::{collections::HashMap, rc::Rc};

use super::{
    allocations,
    function::{ProgramFunction, constants, failure, in_case, stand_ins, unwritten_error, with_elements},
    panics::{catch_panic, is_fault},
};
use autobwd_core::{
    __private::{Implementation, Memory, internals::*},
    Cx, DType, Dim, Error, ErrorKind, Meta, OpInfoMap, Result, Role, Tensor, Var,
    tensor::padded,
    with_dtype,
};
use autobwd_eager::{prepare, run};
use autobwd_plan::{Graph, ValueId, kernel_binding};

/// The bytes of unwritten memory: NaN, and a number near 0, to which anything can be added. No sample contains numbers
/// of these bytes.
const FILLS: [u8; 2] = [0xff, 0x3f];
/// Bytes of hostile data, invalid as label, index or divisor: zero, huge numbers of both signs, -1 and NaN.
const HOSTILE: [u8; 4] = [0x00, 0x7f, 0x80, 0xff];

/// Checks the kernels of a function: they write all elements of their outputs whatever these contained, request the
/// scratch memory that they declare, allocate nothing, and compute the same bits on one thread as on those of `many`.
/// Kernels do not panic on any data, those declared `infallible` accept it, and those with `checked` inputs accept any
/// data in others.
///
/// Observations that are no faults go to `warnings`.
///
/// # Errors
/// A violated check, with the operator.
pub(super) fn check_kernels(
    ops: &OpInfoMap,
    function: &ProgramFunction,
    many: &Cx,
    warnings: &mut Vec<String>,
) -> Result<()> {
    let one = Cx::new(1);
    let mut values: HashMap<Var, (Meta, Rc<Memory>)> = HashMap::new();
    for ((name, tensor), (_, meta)) in function.inputs.iter().zip(function.feeds()?) {
        values.insert(function.program.expect_var(name)?, dense_memory(tensor, meta)?);
    }
    for op in &function.program.root().ops {
        if ops.get(&op.ty)?.needs_program() {
            // Tensor arrays and blocks have no memory; their operators are checked alone.
            return Ok(());
        }
        let (desc, args) = stand_ins(op);
        let reads = args.iter().filter(|(role, _)| *role == Role::Input);
        let reads = reads.map(|(_, var)| values.get(var).cloned().ok_or_else(unwritten_error));
        let reads: Vec<(Meta, Rc<Memory>)> = reads.collect::<Result<_>>()?;
        // A composition may have computed a constant.
        let constants = constants(ops, [op])?;
        let vars = args.iter().filter(|(role, _)| *role == Role::Input).map(|(_, var)| var);
        let metas = vars.zip(&reads).map(|(var, (meta, memory))| {
            let is_known = !constants.contains(var) || meta.constant().is_some();
            Ok(if is_known { meta.clone() } else { with_elements(&Tensor::copy_of(memory, 0, meta)?) })
        });
        let ready = prepare(ops, &desc, &metas.collect::<Result<Vec<_>>>()?)?;
        let alone = SingleKernel { ready: &ready, reads: &reads };
        let outputs = catch_panic(|| alone.check((&one, many), ops.may_fail(&op.ty), warnings));
        let outputs = outputs.map_err(|e| of_kernel(e, &op.ty))?;
        let written = args.iter().filter(|(role, _)| *role == Role::Output).map(|(_, var)| *var);
        let outputs = ready.outputs.iter().cloned().zip(outputs.into_iter().map(Rc::new));
        values.extend(written.zip(outputs));
    }
    Ok(())
}

/// Names the kernel, unless its panic does.
fn of_kernel(e: Error, ty: &str) -> Error {
    match e.kind() {
        ErrorKind::Panic => e,
        _ => in_case(&format!("the kernel of `{ty}`: "))(e),
    }
}

/// One operator with its inputs.
pub(super) struct SingleKernel<'a> {
    pub(super) ready: &'a autobwd_core::__private::PreparedOp,
    pub(super) reads: &'a [(Meta, Rc<Memory>)],
}

/// The result of one run of a kernel.
struct Trial {
    outputs: Vec<Memory>,
    /// Bytes of scratch memory that it should request.
    scratch: usize,
    allocations: u64,
}

impl SingleKernel<'_> {
    /// Computes the outputs, with the kernel if there is one.
    pub(super) fn check(
        &self,
        (one, many): (&Cx, &Cx),
        may_fail: bool,
        warnings: &mut Vec<String>,
    ) -> Result<Vec<Memory>> {
        let ready = self.ready;
        let has_kernel = match ready.info.run() {
            Implementation::Kernel(_) => true,
            Implementation::Formula { others } => {
                let other =
                    |meta: &Meta| meta.rows.is_some() || matches!(meta.dtype, DType::I32 | DType::I64);
                others.is_some() && ready.inputs.iter().any(other)
            }
            Implementation::Composition | Implementation::Control(_) => false,
        };
        if !has_kernel {
            let mut outputs = self.memory(0)?;
            run(ready, one, |i| Ok(&self.reads[i].1), outputs.iter_mut())?;
            return Ok(outputs);
        }
        self.check_hostile(one, may_fail)?;
        let [first, second, again] = [FILLS[0], FILLS[1], FILLS[0]].map(|fill| self.trial(one, fill));
        let (first, second, again) = (first?, second?, again?);
        let third = self.trial(many, FILLS[0])?;
        self.check_unchecked(one)?;
        for (k, meta) in ready.outputs.iter().enumerate() {
            let of = |trial: &Trial| Spans::of(meta, &trial.outputs[k]);
            self.compare(k, meta, &of(&first), [&first, &second, &again, &third])?;
        }
        let asked = one.watched_scratch().most;
        if asked < second.scratch {
            let (ty, said) = (ready.desc.ty, second.scratch);
            warnings.push(format!(
                "the kernel of `{ty}` declares {said} bytes in `scratch_bytes`, but uses {asked}"
            ));
        }
        if second.allocations > 0 {
            let n = second.allocations;
            return Err(failure(format!(
                "the kernel allocates memory {n} times; take it from `Cx::scratch` instead"
            )));
        }
        Ok(first.outputs)
    }

    /// Rejects a kernel that panics on hostile data, or fails though it is declared infallible.
    fn check_hostile(&self, cx: &Cx, may_fail: bool) -> Result<()> {
        let promise = (!may_fail).then_some("it is declared `infallible`, but ");
        self.check_filled(cx, ("inputs", promise), &vec![true; self.reads.len()])
    }

    /// Rejects a kernel with `checked` inputs, whose elements it accepts, that fails because of others.
    fn check_unchecked(&self, cx: &Cx) -> Result<()> {
        let unchecked = self.unchecked();
        match unchecked.contains(&false) {
            true => self.check_filled(cx, ("inputs that are not `checked`", Some("it ")), &unchecked),
            false => Ok(()),
        }
    }

    /// By input: whether it is not declared `checked`.
    fn unchecked(&self) -> Vec<bool> {
        let (desc, schema) = (&self.ready.desc, self.ready.info.schema());
        let mut unchecked = vec![true; self.reads.len()];
        for (name, vars) in desc.inputs.iter() {
            let is_checked = schema.input(&name).is_some_and(|slot| slot.checked);
            for var in vars.iter().filter(|var| is_checked && **var != Var::EMPTY) {
                unchecked[self.ready.arg(*var).1] = false;
            }
        }
        unchecked
    }

    /// Runs the kernel on hostile data in these inputs. It must not panic; after a promise, the start of a message, it
    /// must not fail.
    fn check_filled(&self, cx: &Cx, (what, promise): (&str, Option<&str>), inputs: &[bool]) -> Result<()> {
        let is_data =
            |meta: &Meta| meta.rows.is_none() && meta.dtype != DType::Bool && meta.constant().is_none();
        for fill in HOSTILE {
            let filled = |((meta, memory), is_filled): (&(Meta, Rc<Memory>), &bool)| match is_data(meta) {
                true if *is_filled => Ok((meta.clone(), Rc::new(filled(memory.len(), fill)?))),
                _ => Ok((meta.clone(), memory.clone())),
            };
            let reads = self.reads.iter().zip(inputs).map(filled).collect::<Result<Vec<_>>>()?;
            let hostile = SingleKernel { ready: self.ready, reads: &reads };
            let outcome = catch_panic(|| hostile.trial(cx, FILLS[0]));
            let case = format!("{what} with all bytes {fill:#04x}");
            match outcome {
                Err(e) if e.kind() == ErrorKind::Panic => {
                    return Err(Error::new(e.kind(), format!("on {case}, {}", e.message())));
                }
                Err(e) if promise.is_some() || is_fault(&e) => {
                    let promise = promise.unwrap_or("it ");
                    return Err(failure(format!("{promise}fails on {case}: {}", e.message())));
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn memory(&self, fill: u8) -> Result<Vec<Memory>> {
        self.ready.sizes.iter().map(|bytes| filled(*bytes, fill)).collect()
    }

    /// Runs the kernel with every byte of outputs and scratch memory set to `fill`.
    fn trial(&self, cx: &Cx, fill: u8) -> Result<Trial> {
        let (ready, outputs) = (self.ready, self.memory(fill)?);
        let args: Vec<_> =
            (1..=ready.inputs.len() + outputs.len()).map(|k| ready.arg(Var::stand_in(k))).collect();
        let meta = |(role, i): &(Role, usize)| match role {
            Role::Input => ready.inputs[*i].clone(),
            Role::Output => ready.outputs[*i].clone(),
        };
        let reads: Vec<bool> = args.iter().map(|(role, _)| *role == Role::Input).collect();
        let metas: Vec<Meta> = args.iter().map(meta).collect();
        let graph = Graph::of_one(&ready.desc, ready.info, &metas, &reads)?;
        let bytes = |value: ValueId| graph.values[value].meta.bytes().unwrap_or(0);
        let scratch = graph.instructions[0].scratch.iter().map(|value| filled(bytes(*value), fill));
        let scratch = scratch.collect::<Result<Vec<_>>>()?;
        let mut place = |value: ValueId| {
            let memory = match args.get(value) {
                Some((Role::Input, i)) => &*self.reads[*i].1,
                Some((Role::Output, i)) => &outputs[*i],
                // Values of scratch memory follow those in slots.
                None => &scratch[value - args.len()],
            };
            // SAFETY: the kernel is dropped before this function returns; inputs are only read, and the memory of outputs
            // and scratch is local to this function.
            #[allow(unsafe_code)]
            unsafe { memory.place(0, bytes(value)) }.map(Some)
        };
        let mut kernel = kernel_binding::kernel(&graph, &graph.instructions[0], &[], &mut place)?;
        let scratch = kernel.scratch_bytes(cx.threads());
        cx.watch_scratch(scratch, fill)?;
        let before = allocations::count();
        kernel.run(cx)?;
        let allocations = allocations::count() - before;
        let asked = cx.watched_scratch();
        if asked.exceeded || asked.most > scratch {
            let most = asked.most;
            return Err(failure(format!(
                "the kernel uses {most} bytes of scratch memory at a time, but `scratch_bytes` declares {scratch}, \
                 in one piece"
            )));
        }
        Ok(Trial { outputs, scratch, allocations })
    }

    fn compare(&self, k: usize, meta: &Meta, spans: &Spans, trials: [&Trial; 4]) -> Result<()> {
        let all = trials.map(|trial| trial.outputs[k].slice::<u8>(0, trial.outputs[k].len()));
        for (at, size, element) in spans.elements() {
            let [a, b, again, many] = all.map(|bytes| &bytes[at..at + size]);
            let text = if a.iter().all(|x| *x == FILLS[0]) && b.iter().all(|x| *x == FILLS[1]) {
                "is not written"
            } else if a != again {
                "is random: two runs on the same inputs differ; draw from a seed that is an attribute or an input"
            } else if a != b {
                "depends on the previous contents of outputs or scratch memory"
            } else if a != many {
                "differs between one thread and three"
            } else {
                continue;
            };
            return Err(failure(format!("{}{} {text}", self.name(k, meta), spans.name(element))));
        }
        Ok(())
    }

    /// `` `Out` ``, or `` number 1 of `Out` `` of a slot with several variables.
    fn name(&self, output: usize, meta: &Meta) -> String {
        let stand_in = |v: &Var| *v != Var::EMPTY && self.ready.arg(*v) == (Role::Output, output);
        let args = self.ready.desc.outputs.get(meta.slot());
        match args.iter().position(stand_in) {
            Some(at) if args.len() > 1 => format!("variable {at} of `{}`", meta.slot()),
            _ => format!("`{}`", meta.slot()),
        }
    }
}

/// A tensor in memory.
pub(super) fn dense_memory(tensor: &Tensor, meta: Meta) -> Result<(Meta, Rc<Memory>)> {
    let mut memory = Memory::zeroed(tensor.bytes().len())?;
    memory.slice_mut(0, tensor.bytes().len()).copy_from_slice(tensor.bytes());
    Ok((meta, Rc::new(memory)))
}

/// Memory with every byte set to `fill`.
fn filled(bytes: usize, fill: u8) -> Result<Memory> {
    let mut memory = Memory::zeroed(bytes)?;
    let len = memory.len();
    memory.slice_mut(0, len).fill(fill);
    Ok(memory)
}

/// The bytes of an output that must be written.
struct Spans {
    dims: Vec<usize>,
    size: usize,
    /// For rows: their capacity and their number.
    rows: Option<(usize, usize)>,
}

/// One number of an output.
enum OutputElement {
    Number(usize),
    Value(usize),
}

impl Spans {
    fn of(meta: &Meta, memory: &Memory) -> Spans {
        let dims = meta.dims.known().unwrap_or_default().to_vec();
        let there = || with_dtype!(meta.dtype, T => memory.rows::<T>(0, meta).indices().len());
        let rows = meta.rows.and_then(Dim::get).map(|room| (room, there()));
        Spans { dims, size: meta.dtype.size(), rows }
    }

    /// Offset and size of each number.
    fn elements(&self) -> impl Iterator<Item = (usize, usize, OutputElement)> + '_ {
        let number = size_of::<i64>();
        let (numbers, first, count) = match self.rows {
            None => (0, 0, self.dims.iter().product()),
            // A number terminates the rows if there is capacity left.
            Some((room, there)) => {
                let width: usize = self.dims.iter().skip(1).product();
                (room.min(there + 1), padded(room * number), there * width)
            }
        };
        let numbers = (0..numbers).map(move |i| (i * number, number, OutputElement::Number(i)));
        numbers.chain((0..count).map(move |i| (first + i * self.size, self.size, OutputElement::Value(i))))
    }

    fn name(&self, element: OutputElement) -> String {
        match (element, self.rows) {
            (OutputElement::Number(i), _) => format!(", row index {i},"),
            (OutputElement::Value(i), None) => format!("{:?}", index(&self.dims, i)),
            (OutputElement::Value(i), Some((_, there))) => {
                let dims: Vec<_> = [there].into_iter().chain(self.dims.iter().skip(1).copied()).collect();
                format!("{:?} of its rows", index(&dims, i))
            }
        }
    }
}

/// The position of element `i` of a tensor.
pub(super) fn index(dims: &[usize], mut i: usize) -> Vec<usize> {
    let mut index = vec![0; dims.len()];
    for (at, n) in index.iter_mut().zip(dims).rev() {
        (*at, i) = (i % n.max(&1), i / n.max(&1));
    }
    index
}

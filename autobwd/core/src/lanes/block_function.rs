//! Formulas as block functions: a loop over one formula, compiled for every instruction set and chosen at run time.
#![allow(unsafe_code)]

use std::{marker::PhantomData, mem::MaybeUninit, sync::Arc};

use super::{
    block_args::{BlockArg, BlockBody, BlockFn},
    formula::Formula,
    interpreter::{Instructions, Interpreted},
};
use crate::{
    Arity, DType, Float, Lanes, OpDesc, Result, Schema, SlotDef,
    numbers::Lane,
    runtime::{FUSED, isa, panics::catch_panic},
    tensor::LINE,
};

/// The limit of arguments, including derivatives: derivatives of third order have up to 81 inputs and 47 outputs.
pub(crate) const MAX_ARGS: usize = 128;

/// The compiled formula of an operator.
struct CompiledFormula<O>(PhantomData<O>);

impl<O: Lanes> BlockBody for CompiledFormula<O> {
    #[inline(always)]
    unsafe fn run<F: Float, const VL: usize>(
        args: *const BlockArg,
        attrs: *const (),
        first: usize,
        n: usize,
    ) {
        // SAFETY: the caller's promise.
        unsafe { run_chunks::<O, F, VL>(args, attrs, first, n) }
    }
}

/// # Safety
/// As [`BlockFn`], with the `F` of the dtype. The operator itself is not trusted: `O::lane` reads and writes copies on
/// the stack, of the slots that its schema has. Every input chunk is loaded before any output chunk is stored and no
/// reference is ever formed, so an output may share the address of an input.
#[inline(always)]
unsafe fn run_chunks<O: Lanes, F: Float, const VL: usize>(
    args: *const BlockArg,
    attrs: *const (),
    first: usize,
    n: usize,
) {
    let (inputs, outputs) = const { (O::SLOTS.inputs.len(), O::SLOTS.outputs.len()) };
    // SAFETY: there are `inputs + outputs` arguments, `MAX_ARGS` at most (checked by `LaneEntry::of`), and they point
    // to cache lines of `VL` elements (checked by `choose`), aligned and initialised, as the caller promises. `x` is
    // written before it is read for all inputs and `y` for all outputs, and `lane` accesses no others.
    unsafe {
        // A local copy, which outputs cannot overwrite: otherwise attributes would be reloaded for every line.
        let attrs = &O::Attrs::clone(&*attrs.cast());
        let mut start = [std::ptr::null_mut::<F>(); MAX_ARGS];
        for (k, start) in start.iter_mut().enumerate().take(inputs + outputs) {
            *start = (*args.add(k)).elements(first);
        }
        let mut i = 0;
        while i < n {
            // Uninitialised: zeros for all slots would be written to the stack for every line.
            let mut x = [const { MaybeUninit::<[F; VL]>::uninit() }; MAX_ARGS];
            let mut y = [const { MaybeUninit::<[F; VL]>::uninit() }; MAX_ARGS];
            for k in 0..inputs {
                let absent = optional(O::SLOTS.inputs, k) && start[k].is_null();
                x[k].write(match unread(O::SLOTS.inputs, k) || absent {
                    true => [F::from(0.0); VL],
                    false => *(start[k].add(i) as *const [F; VL]),
                });
            }
            for y in &mut y[..outputs] {
                y.write([F::from(0.0); VL]);
            }
            for l in 0..VL {
                // Generated formulas index slots by constants, so that the check is resolved at compile time.
                let get = |k: usize| if k < inputs { x[k].assume_init_ref()[l] } else { F::from(0.0) };
                let put = |k: usize, v: F| {
                    if k < outputs {
                        y[k].assume_init_mut()[l] = v
                    }
                };
                O::lane::<F>(attrs, get, put);
            }
            for k in 0..outputs {
                let out = start[inputs + k];
                if !optional(O::SLOTS.outputs, k) || !out.is_null() {
                    *(out.add(i) as *mut [F; VL]) = y[k].assume_init();
                }
            }
            i += VL;
        }
    }
}

/// A formula reads 0 for an input declared `shape_only`.
#[inline(always)]
const fn unread(slots: &[SlotDef], k: usize) -> bool {
    slots[k].shape_only
}

#[inline(always)]
const fn optional(slots: &[SlotDef], k: usize) -> bool {
    matches!(slots[k].arity, Arity::Optional)
}

/// # Safety
/// As [`BlockFn`], on a machine with these features.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,avx2,fma")]
unsafe fn avx512<B: BlockBody, T, const VL: usize>(
    args: *const BlockArg,
    attrs: *const (),
    first: usize,
    n: usize,
) where
    Lane<T, true>: Float,
{
    // SAFETY: the caller's promise.
    unsafe { B::run::<Lane<T, true>, VL>(args, attrs, first, n) }
}

/// # Safety
/// As [`BlockFn`], on a machine with these features.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
unsafe fn avx2<B: BlockBody, T, const VL: usize>(
    args: *const BlockArg,
    attrs: *const (),
    first: usize,
    n: usize,
) where
    Lane<T, true>: Float,
{
    // SAFETY: the caller's promise.
    unsafe { B::run::<Lane<T, true>, VL>(args, attrs, first, n) }
}

/// # Safety
/// As [`BlockFn`].
unsafe fn baseline<B: BlockBody, T, const VL: usize>(
    args: *const BlockArg,
    attrs: *const (),
    first: usize,
    n: usize,
) where
    Lane<T, FUSED>: Float,
{
    // SAFETY: the caller's promise.
    unsafe { B::run::<Lane<T, FUSED>, VL>(args, attrs, first, n) }
}

fn choose<B: BlockBody, T, const VL: usize>() -> BlockFn
where
    Lane<T, true>: Float,
    Lane<T, FUSED>: Float,
{
    // Buffers are padded to one cache line: more elements at a time would write past the end.
    const { assert!(VL * size_of::<T>() == LINE) }
    match isa() {
        #[cfg(target_arch = "x86_64")]
        crate::runtime::Isa::Avx512 => avx512::<B, T, VL>,
        #[cfg(target_arch = "x86_64")]
        crate::runtime::Isa::Avx2 => avx2::<B, T, VL>,
        _ => baseline::<B, T, VL>,
    }
}

fn block_function<B: BlockBody>(dtype: DType) -> Option<BlockFn> {
    match dtype {
        DType::F32 => Some(choose::<B, f32, 16>()),
        DType::F64 => Some(choose::<B, f64, 8>()),
        _ => None,
    }
}

fn record<O: Lanes>(desc: &OpDesc) -> Result<Formula> {
    let attrs = O::attrs(desc)?;
    Ok(Formula::record(const { &O::SLOTS }, desc, &|get, put| O::symbols(&attrs, get, put)))
}

/// The registry entry of a pointwise operator. Only [`LaneEntry::of`] creates one, so that block function, schema and
/// attributes belong to the same operator.
#[derive(Debug)]
pub struct LaneEntry {
    schema: &'static Schema,
    block: fn(DType) -> Option<BlockFn>,
    attrs: fn(&OpDesc) -> Result<LaneAttrs>,
    formula: fn(&OpDesc) -> Result<Formula>,
}

/// Attributes of a formula, at a stable address. Block functions know their type.
#[derive(Clone)]
pub(super) struct LaneAttrs(Arc<dyn Send + Sync>);

impl LaneAttrs {
    #[inline]
    pub(super) fn ptr(&self) -> *const () {
        Arc::as_ptr(&self.0).cast()
    }
}

impl LaneEntry {
    pub(crate) const fn of<O: Lanes>() -> LaneEntry {
        const { assert!(O::SLOTS.inputs.len() + O::SLOTS.outputs.len() <= MAX_ARGS, "too many slots") }
        LaneEntry {
            schema: &O::SLOTS,
            block: block_function::<CompiledFormula<O>>,
            attrs: |desc| Ok(LaneAttrs(Arc::new(O::attrs(desc)?))),
            formula: record::<O>,
        }
    }

    /// The entry of an operator whose formula is interpreted: nothing is compiled for it, and it runs slower.
    pub(crate) const fn interpreted<O: Lanes>() -> LaneEntry {
        LaneEntry {
            block: block_function::<Interpreted>,
            attrs: |desc| Ok(LaneAttrs(Arc::new(Instructions::new(&record::<O>(desc)?)))),
            ..LaneEntry::of::<O>()
        }
    }

    /// The formula with these attributes, as data.
    pub fn formula(&self, desc: &OpDesc) -> Result<Formula> {
        let name = self.schema.name;
        catch_panic(|| (self.formula)(desc))
            .unwrap_or_else(|panic| Err(panic.error(&format!("the formula of `{name}`"))))
    }

    pub(super) fn schema(&self) -> &'static Schema {
        self.schema
    }

    pub(super) fn block(&self, dtype: DType) -> Option<BlockFn> {
        (self.block)(dtype)
    }

    pub(super) fn attrs(&self, desc: &OpDesc) -> Result<LaneAttrs> {
        (self.attrs)(desc)
    }
}

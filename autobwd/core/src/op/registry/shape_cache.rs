//! A cache of checks and shape inference, for passes over many operators.
//!
//! Layers repeat: most operators of a large program share type, attributes and input shapes with an earlier one, and so
//! the inferred shapes.

use smallvec::SmallVec;

use crate::{AttrMap, DType, Dims, Meta, OpDesc, OpInfo, Slots, Var, VarDesc, VarKind};

/// A direct-mapped cache of inferred outputs.
#[derive(Default)]
pub struct ShapeCache {
    entries: Vec<Option<Box<ShapeCacheEntry>>>,
}

/// Number of entries.
const ENTRIES: usize = 256;
/// Operators with more inputs and outputs are not cached: comparison takes as long as inference.
const MOST_ARGS: usize = 16;

struct ShapeCacheEntry {
    info: &'static OpInfo,
    inputs: Slots,
    outputs: Slots,
    attrs: AttrMap,
    read: SmallVec<[(VarKind, DType, Dims); 4]>,
    /// Inferred metas, each with its position among the outputs.
    inferred: SmallVec<[(usize, Meta); 2]>,
}

/// Compares the parts of a declaration that shape rules use.
fn is_declared(desc: &VarDesc, (kind, dtype, dims): &(VarKind, DType, Dims)) -> bool {
    desc.kind == *kind && desc.dtype == *dtype && desc.dims == *dims
}

impl ShapeCacheEntry {
    fn is<'d>(&self, info: &'static OpInfo, op: &OpDesc, of: impl Fn(Var) -> Option<&'d VarDesc>) -> bool {
        std::ptr::eq(self.info, info)
            && self.inputs.fills_as(&op.inputs)
            && self.outputs.fills_as(&op.outputs)
            && self.attrs == op.attrs
            && op
                .reads()
                .zip(&self.read)
                .all(|(var, known)| of(var).is_some_and(|desc| is_declared(desc, known)))
    }
}

impl ShapeCache {
    /// The inferred metas of an operator, each with its position among the outputs, if an operator with the same type,
    /// attributes and input metas has passed its check and its shape rule.
    pub fn find<'d>(
        &self,
        info: &'static OpInfo,
        op: &OpDesc,
        of: impl Fn(Var) -> Option<&'d VarDesc>,
    ) -> Option<&[(usize, Meta)]> {
        let entry = self.entries.get(place(info, op, &of)?)?.as_ref()?;
        entry.is(info, op, of).then_some(entry.inferred.as_slice())
    }

    /// Caches the metas inferred for an operator that has passed its check.
    pub fn insert<'d>(
        &mut self,
        info: &'static OpInfo,
        op: &OpDesc,
        of: impl Fn(Var) -> Option<&'d VarDesc>,
        inferred: &[(Var, Meta)],
    ) {
        // The outputs of a control flow operator depend on more than its slots.
        if info.is_control() || op.inputs.args().count() + op.outputs.args().count() > MOST_ARGS {
            return;
        }
        let position = |var: Var| {
            let mut all =
                op.outputs.args().enumerate().filter(|(_, v)| *v == var).map(|(position, _)| position);
            all.next().filter(|_| all.next().is_none())
        };
        let inferred: Option<_> =
            inferred.iter().map(|(var, meta)| Some((position(*var)?, meta.clone()))).collect();
        let read: Option<_> =
            op.reads().map(|var| of(var).map(|desc| (desc.kind, desc.dtype, desc.dims.clone()))).collect();
        if let (Some(inferred), Some(read), Some(place)) = (inferred, read, place(info, op, &of)) {
            let (inputs, outputs, attrs) = (op.inputs.clone(), op.outputs.clone(), op.attrs.clone());
            if self.entries.is_empty() {
                self.entries.resize_with(ENTRIES, || None);
            }
            self.entries[place] =
                Some(Box::new(ShapeCacheEntry { info, inputs, outputs, attrs, read, inferred }));
        }
    }
}

/// The index of an operator's entry: a hash of its type and of the shape of its first input.
fn place<'d>(info: &OpInfo, op: &OpDesc, of: impl Fn(Var) -> Option<&'d VarDesc>) -> Option<usize> {
    let dims = match op.reads().next() {
        Some(first) => &*of(first)?.dims,
        None => &[],
    };
    let mix = |hash: u64, word: u64| (hash.rotate_left(5) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let hash = mix(0, std::ptr::from_ref(info).addr() as u64);
    Some((dims.iter().fold(hash, |hash, dim| mix(hash, dim.wire() as u64)) >> 56) as usize % ENTRIES)
}

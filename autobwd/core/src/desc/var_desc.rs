//! Declarations of variables.

use super::Var;
use crate::{DType, Dim, Dims, Meta};

/// The kind of value that a variable holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum VarKind {
    /// A dense tensor.
    #[default]
    Tensor,
    /// An array of tensors.
    TensorArray,
    /// Some rows of a tensor: a sparse gradient.
    SelectedRows,
    /// The step state that a control flow operator saves for the backward pass.
    StepScopes,
}

/// The declaration of a variable in a block.
#[derive(Clone, Debug, PartialEq)]
pub struct VarDesc {
    /// Kind of value.
    pub kind: VarKind,
    /// Element type.
    pub dtype: DType,
    /// Dimensions, −1 where unknown.
    pub dims: Dims,
    /// Whether the scope keeps it between runs.
    pub persistable: bool,
    /// Whether gradients stop at it.
    pub stop_gradient: bool,
    /// Whether it is trained.
    pub parameter: bool,
    /// The variable that this one is the gradient of, or a contribution to the gradient of.
    pub gradient_of: Option<Var>,
}

impl VarDesc {
    /// An intermediate tensor.
    pub fn new(dtype: DType, dims: Dims) -> VarDesc {
        VarDesc {
            kind: VarKind::Tensor,
            dtype,
            dims,
            persistable: false,
            stop_gradient: false,
            parameter: false,
            gradient_of: None,
        }
    }

    /// An intermediate value, as inferred by a shape rule.
    pub fn of(meta: Meta) -> VarDesc {
        let kind = match meta {
            Meta { array: true, .. } => VarKind::TensorArray,
            Meta { rows: Some(_), .. } => VarKind::SelectedRows,
            _ => VarKind::Tensor,
        };
        VarDesc { kind, ..VarDesc::new(meta.dtype, meta.dims) }
    }

    /// Data to be fed; gradients stop at it.
    pub fn data(dtype: DType, dims: Dims) -> VarDesc {
        VarDesc { stop_gradient: true, ..VarDesc::new(dtype, dims) }
    }

    /// A parameter: persistable, and trained.
    pub fn parameter(dtype: DType, dims: Dims) -> VarDesc {
        VarDesc { persistable: true, parameter: true, ..VarDesc::new(dtype, dims) }
    }

    /// Dtype and dimensions; for row-sparse values, with an unknown number of rows.
    pub fn meta(&self) -> Meta {
        let mut meta = Meta::new(self.dtype, self.dims.clone());
        meta.rows = (self.kind == VarKind::SelectedRows).then_some(Dim::UNKNOWN);
        meta.array = matches!(self.kind, VarKind::TensorArray | VarKind::StepScopes);
        meta
    }

    /// Whether an operator may write a value of this dtype and shape to the variable: one that agrees with its
    /// declaration. A scalar may also be written where one element, `[1]`, is declared, as the reference did before
    /// version 2.5. Gradients of such variables are declared like them, so one element may also be written where a
    /// scalar gradient is declared.
    pub(crate) fn allows(&self, meta: &Meta) -> bool {
        let whole = meta.rows.is_none() && !meta.array && self.kind == VarKind::Tensor;
        if whole && self.dtype == meta.dtype && self.dims.agrees(&meta.dims) {
            return true;
        }
        let with_dims = |meta: &Meta, dims: &[usize]| {
            let mut meta = meta.clone();
            meta.dims = dims.into();
            meta
        };
        let declared = self.meta();
        let scalar = meta.rank() == 0 && !self.persistable && declared.agrees(&with_dims(meta, &[1]));
        let one = || {
            self.gradient_of.is_some() && meta.dims == [1].into() && declared.agrees(&with_dims(meta, &[]))
        };
        declared.agrees(meta) || scalar || one()
    }
}

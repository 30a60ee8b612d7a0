//! Values of StableHLO functions, with dtype and dimensions, and the operations on them.
//!
//! Every method appends one or few lines to the function that is being written. A call that does not fit, such as a sum
//! of values in different shapes, fails the function; the first failure is reported with the operator that is being
//! lowered.

mod arith;
mod collective;
mod conv;
mod function;
mod index;
mod reduce;
mod region;
mod shape;
mod types;

pub use conv::{ConvolutionLayout, HloConvolution, Window};
pub(crate) use function::HloFunction;
pub use index::{GatherDims, ScatterDims};
pub use reduce::Reduction;
pub(crate) use region::WhileText;
pub use types::{HloDType, HloType};

use std::{fmt, rc::Rc, sync::Arc};

use autobwd::{__private::internals::*, Error, Meta};

/// A value of a StableHLO function; or, in an output slot, the type of the value that is to be set there.
///
/// `+`, `-`, `*` and `/` work elementwise on values of equal dtype and shape; a scalar operand, or a number, is broadcast.
#[derive(Clone)]
pub struct Hlo {
    pub(crate) id: Id,
    ty: HloType,
    /// Elements that are known when the program is lowered.
    known: Option<Arc<[f64]>>,
    /// The value of 16 bits that was converted.
    narrow: Option<Rc<Hlo>>,
    f: HloFunction,
}

/// The name of a value in the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Id {
    /// No value yet.
    Unset,
    /// `%3`
    One(usize),
    /// `%3#1`
    Part(usize, usize),
}

impl fmt::Display for Hlo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.id {
            Id::Unset => f.write_str(function::UNSET),
            Id::One(id) => write!(f, "%{id}"),
            Id::Part(id, part) => write!(f, "%{id}#{part}"),
        }
    }
}
impl fmt::Debug for Hlo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self} : {}", self.ty)
    }
}

impl Hlo {
    /// A value that is to be set.
    pub(crate) fn unset(f: &HloFunction, meta: &Meta) -> Hlo {
        let known = meta.constant().map(Arc::from);
        Hlo { id: Id::Unset, ty: HloType::of(meta), known, narrow: None, f: f.clone() }
    }

    /// The same value with elements that are known.
    pub(crate) fn with_known(self, known: Option<&[f64]>) -> Hlo {
        Hlo { known: known.map(Arc::from), ..self }
    }

    pub(crate) fn is_set(&self) -> bool {
        self.id != Id::Unset
    }

    /// Dtype and dimensions.
    pub fn ty(&self) -> &HloType {
        &self.ty
    }

    /// The element type.
    pub fn dtype(&self) -> HloDType {
        self.ty.dtype
    }

    /// The dimensions.
    pub fn dims(&self) -> &[usize] {
        &self.ty.dims
    }

    /// The number of dimensions.
    pub fn rank(&self) -> usize {
        self.ty.dims.len()
    }

    /// The number of elements.
    pub fn numel(&self) -> usize {
        self.ty.dims.iter().product()
    }

    /// The elements, if they are known when the program is lowered: those of slots declared `constant`.
    pub fn known(&self) -> Option<&[f64]> {
        self.known.as_deref()
    }

    /// An axis, from the start; negative ones count from the end. A scalar has the axis 0, too.
    pub fn axis(&self, axis: impl Into<i64>) -> usize {
        let (axis, rank) = (axis.into(), self.rank().max(1) as i64);
        match if axis < 0 { axis + rank } else { axis } {
            from_start if (0..rank).contains(&from_start) => from_start as usize,
            _ => {
                self.fail(format!("{} has no axis {axis}", self.ty));
                0
            }
        }
    }

    /// Fails the lowering of the operator.
    pub fn fail(&self, text: impl Into<String>) {
        self.f.fail(Error::internal(text.into()));
    }

    /// Fails the lowering of the operator with an error.
    pub(crate) fn fail_with(&self, error: Error) {
        self.f.fail(error);
    }

    /// Fails the lowering of the operator: it has no form in StableHLO with these inputs or attributes.
    pub fn refuse(&self, why: impl fmt::Display) {
        self.f.refuse(why);
    }

    fn emit(&self, ty: HloType, text: impl fmt::Display) -> Hlo {
        let id = self.f.line(1, text);
        self.value(Id::One(id), ty)
    }

    /// Appends an operation with several results.
    fn emit_all(&self, types: Vec<HloType>, text: impl fmt::Display) -> Vec<Hlo> {
        let id = self.f.line(types.len(), text);
        let of = |(part, ty)| self.value(Id::Part(id, part), ty);
        match types.len() {
            1 => types.into_iter().map(|ty| self.value(Id::One(id), ty)).collect(),
            _ => types.into_iter().enumerate().map(of).collect(),
        }
    }

    fn value(&self, id: Id, ty: HloType) -> Hlo {
        Hlo { id, ty, known: None, narrow: None, f: self.f.clone() }
    }

    /// The type with other dimensions.
    fn in_dims(&self, dims: &[usize]) -> HloType {
        HloType { dtype: self.dtype(), dims: dims.to_vec() }
    }
}

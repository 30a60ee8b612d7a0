//! Declared attributes: defaults, bounds, and groups of attributes that several operators share.

use std::{cmp::Ordering, fmt};

use super::{AttrRecorder, AttrType, AttrValue, const_for::const_for};
use crate::{Attr, Error, OpDesc, Result};

/// One attribute of an operator.
#[derive(Clone, Copy, Debug)]
pub struct AttrDef {
    /// Name in programs.
    pub name: &'static str,
    /// Name of the field in the operator's struct.
    pub field: &'static str,
    /// Type in programs.
    pub ty: AttrType,
    /// The value if a program does not set one.
    pub default: Option<fn() -> Attr>,
    /// The default in a form that can be compared at compile time; empty if the author wrote no literal.
    pub literal: &'static str,
    /// Bounds of the value.
    pub bounds: &'static [AttrBound],
    /// The check of its value in a description.
    pub check: AttrCheck,
    /// First line of the field's documentation.
    pub doc: &'static str,
    /// Source file of the field.
    pub file: &'static str,
    /// Source line of the field.
    pub line: u32,
}

/// Checks the value of an attribute in a description: its type, its bounds, and that it is present.
pub type AttrCheck = fn(&OpDesc, &AttrDef) -> Result<()>;

impl AttrDef {
    /// The bounds as the author wrote them, `min = 0.0, below = 1.0`.
    pub fn bounds_text(&self) -> String {
        self.bounds.iter().map(AttrBound::to_string).collect::<Vec<_>>().join(", ")
    }

    /// The field, and where it is.
    pub(crate) const fn place(&self) -> (&'static str, &'static str, u32) {
        (self.field, self.file, self.line)
    }

    /// Checks the declaration itself, as far as the macro cannot: its limits and its default may be any expressions.
    ///
    /// # Errors
    /// Bounds that exclude every value, or the default.
    pub(crate) fn check_declaration(&self) -> Result<()> {
        for (i, one) in self.bounds.iter().enumerate() {
            let others = &self.bounds[i + 1..];
            if let Some(other) = others.iter().find(|other| one.kind.excludes(&one.limit(), other)) {
                return Err(Error::attr(self.name, format!("no value is within `{one}` and `{other}`")));
            }
        }
        let Some(default) = self.default else { return Ok(()) };
        self.bounds.iter().try_for_each(|bound| bound.check(self.name, &default()))
    }
}

/// A bound of a numeric attribute.
#[derive(Clone, Copy, Debug)]
pub struct AttrBound {
    /// The side that it bounds, and whether the limit itself is allowed.
    pub kind: BoundKind,
    /// The limit, of the attribute's type.
    pub limit: fn() -> Attr,
    /// The limit as the author wrote it.
    pub text: &'static str,
}

/// The kind of an [`AttrBound`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BoundKind {
    /// The value is at least the limit.
    Min,
    /// The value is at most the limit.
    Max,
    /// The value is larger than the limit.
    Above,
    /// The value is smaller than the limit.
    Below,
}

impl BoundKind {
    /// Whether no number is within this bound with limit `limit` and another one on the other side.
    fn excludes(self, limit: &Attr, other: &AttrBound) -> bool {
        use BoundKind::{Above, Below, Max, Min};
        let order = compare(limit, &other.limit());
        match (self, other.kind) {
            (Min, Max) => order == Some(Ordering::Greater),
            (Min, Below) | (Above, Max | Below) => order.is_some_and(Ordering::is_ge),
            (Max, Min) => order == Some(Ordering::Less),
            (Below, Min | Above) | (Max, Above) => order.is_some_and(Ordering::is_le),
            (Min | Above, Min | Above) | (Max | Below, Max | Below) => false,
        }
    }
}

impl AttrBound {
    fn limit(&self) -> Attr {
        (self.limit)()
    }

    /// NaN fails every bound.
    fn check(&self, name: &str, value: &Attr) -> Result<()> {
        let limit = self.limit();
        let order = compare(value, &limit);
        let (holds, must) = match self.kind {
            BoundKind::Min => (order.is_some_and(Ordering::is_ge), "at least"),
            BoundKind::Max => (order.is_some_and(Ordering::is_le), "at most"),
            BoundKind::Above => (order.is_some_and(Ordering::is_gt), "above"),
            BoundKind::Below => (order.is_some_and(Ordering::is_lt), "below"),
        };
        if holds {
            return Ok(());
        }
        Err(Error::attr(name, format!("must be {must} {}, is {}", number(&limit), number(value))))
    }
}
impl fmt::Display for AttrBound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let key = match self.kind {
            BoundKind::Min => "min",
            BoundKind::Max => "max",
            BoundKind::Above => "above",
            BoundKind::Below => "below",
        };
        write!(f, "{key} = {}", self.text)
    }
}

/// The order of two numbers; `None` for NaN and for other values.
fn compare(a: &Attr, b: &Attr) -> Option<Ordering> {
    let integer = |attr: &Attr| match attr {
        Attr::I32(x) => Some(i64::from(*x)),
        Attr::I64(x) => Some(*x),
        _ => None,
    };
    let float = |attr: &Attr| match attr {
        Attr::F32(x) => Some(f64::from(*x)),
        Attr::F64(x) => Some(*x),
        _ => None,
    };
    match (integer(a), integer(b)) {
        (Some(a), Some(b)) => Some(a.cmp(&b)),
        _ => float(a)?.partial_cmp(&float(b)?),
    }
}

/// A number as in messages.
fn number(attr: &Attr) -> String {
    match attr {
        Attr::I32(x) => x.to_string(),
        Attr::I64(x) => x.to_string(),
        Attr::F32(x) => x.to_string(),
        Attr::F64(x) => x.to_string(),
        other => other.to_string(),
    }
}

/// Reads an attribute from a description.
///
/// # Errors
/// Another type; a value out of its bounds; a missing attribute without default.
pub fn attr<A: AttrValue>(desc: &OpDesc, def: &AttrDef) -> Result<A> {
    let default;
    let value = match (desc.attrs.get(def.name), def.default) {
        (Some(value), _) => value,
        (None, Some(of)) => {
            default = of();
            &default
        }
        (None, None) => return Err(Error::attr(def.name, "is missing")),
    };
    let read = A::from_attr(value).map_err(|e| Error::attr(def.name, e))?;
    def.bounds.iter().try_for_each(|bound| bound.check(def.name, value))?;
    Ok(read)
}

/// Checks an attribute in a description: [`attr`] without its value.
///
/// # Errors
/// As [`attr`].
pub fn check_value<A: AttrValue>(desc: &OpDesc, def: &AttrDef) -> Result<()> {
    attr::<A>(desc, def).map(drop)
}

/// Attributes that several operators share, as a struct of its own: `#[derive(Attrs)]`.
///
/// ```standalone_crate
/// use autobwd::{Attrs, Float, NoGrad, Pointwise, Var, register_op};
///
/// /// A straight line.
/// #[derive(Attrs, Clone, Copy, Debug)]
/// pub struct Line {
///     /// How steep.
///     #[attr(default = 1.0)]
///     pub slope: f64,
///     /// Where it starts.
///     #[attr(default = 0.0, min = 0.0)]
///     pub start: f64,
/// }
///
/// /// `out = slope * x + start`
/// #[register_op(grad = NoGrad, pointwise)]
/// pub struct Along<V = Var> {
///     /// Any shape.
///     #[input]
///     pub x: V,
///     /// Same shape as `x`.
///     #[output]
///     pub out: V,
///     /// The line.
///     #[attrs]
///     pub line: Line,
/// }
/// impl<F: Float> Pointwise for Along<F> {
///     fn eval(&mut self) {
///         self.out = F::from(self.line.slope) * self.x + F::from(self.line.start);
///     }
/// }
/// let info = autobwd::OpInfoMap::linked()?.get("along")?;
/// assert_eq!(info.schema().attrs.iter().map(|attr| attr.name).collect::<Vec<_>>(), ["slope", "start"]);
/// assert_eq!(Line::default().start(2.0).start, 2.0);
/// # Ok::<(), autobwd::Error>(())
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a group of attributes",
    label = "an `#[attrs]` field is a struct with `#[derive(Attrs)]`"
)]
pub trait Attrs: Clone + fmt::Debug + 'static {
    /// The attributes, in the order of the fields.
    const DEFS: &'static [AttrDef];

    /// Reads all attributes from a description.
    ///
    /// # Errors
    /// A missing attribute without default, another type, a value out of its bounds.
    fn read(desc: &OpDesc) -> Result<Self>;

    /// Records all attributes.
    fn write(self, recorder: &mut AttrRecorder) -> Self;
}

/// Concatenates the attributes of an operator's fields. `N` is their total number.
pub const fn concat_attrs<const N: usize>(fields: &[&[AttrDef]]) -> [AttrDef; N] {
    const NONE: AttrDef = AttrDef {
        name: "",
        field: "",
        ty: AttrType::Bool,
        default: None,
        literal: "",
        bounds: &[],
        check: check_value::<bool>,
        doc: "",
        file: "",
        line: 0,
    };
    let (mut all, mut n) = ([NONE; N], 0);
    const_for!(attrs in fields => {
        const_for!(attr in *attrs => {
            if n < N {
                all[n] = *attr;
                n += 1;
            }
        });
    });
    all
}

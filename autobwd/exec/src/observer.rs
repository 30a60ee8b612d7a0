//! Observers: callbacks around every operator of a run.

use std::{fmt, sync::Arc};

use autobwd_core::{
    __private::internals::*, BlockId, Buf, DType, Meta, Result, Tensor, tensor::ToF64, with_dtype,
};

/// Callbacks around every operator of a run, see [`Executor::observed`](crate::Executor::observed).
///
/// An error of a callback fails the run, and names the operator. Of a loop whose shapes change from step to step, the
/// operators in its block are observed, and the loop itself is not.
///
/// ```
/// # use autobwd::{Builder, DType, Executor, Result, Scope, Tensor};
/// # use autobwd_ops::Math;
/// use std::sync::{Arc, Mutex};
/// use autobwd::exec::{ObservedOp, Observer};
///
/// #[derive(Default)]
/// struct Ranges(Mutex<Vec<String>>);
/// impl Observer for Ranges {
///     fn after(&self, op: &ObservedOp) -> Result<()> {
///         let ranges = op.outputs().iter().map(|out| Ok(format!("{} {}", out.name(), out.range()?)));
///         self.0.lock().expect("no thread panics").extend(ranges.collect::<Result<Vec<_>>>()?);
///         Ok(())
///     }
/// }
///
/// let net = Builder::new();
/// let y = net.input("x", DType::F32, &[2]).exp().square();
/// let (x, ranges) = (Tensor::from_vec([2], vec![0.0_f32, 1.0])?, Arc::new(Ranges::default()));
/// let mut observed = Executor::new().observed(ranges.clone());
/// observed.run(&net.program()?, &mut Scope::new(), &[("x", &x)], &[&y.name()])?;
/// let lines = ranges.0.lock().expect("no thread panics");
/// assert_eq!(*lines, ["exp_0 from 1.0 to 2.7182817", "square_0 from 1.0 to 7.3890557"]);
/// # Ok::<(), autobwd::Error>(())
/// ```
pub trait Observer: Send + Sync {
    /// Called before an operator runs: its outputs have no values yet.
    ///
    /// # Errors
    /// What the observer refuses; none by default.
    fn before(&self, op: &ObservedOp) -> Result<()> {
        let _ = op;
        Ok(())
    }

    /// Called after an operator has run. An input that the operator updates in the scope has its new value.
    ///
    /// # Errors
    /// What the observer refuses.
    fn after(&self, op: &ObservedOp) -> Result<()>;
}

/// The observers of a session, in the order of their calls; none for most.
pub(crate) type Observers = Arc<[Arc<dyn Observer>]>;

/// An operator that runs, with its values.
///
/// The operators of a composition have the place of the operator that they compose.
pub struct ObservedOp {
    pub(crate) block: BlockId,
    pub(crate) index: usize,
    pub(crate) ty: String,
    pub(crate) forward: Option<String>,
    pub(crate) inputs: Vec<ObservedValue>,
    pub(crate) outputs: Vec<ObservedValue>,
}

impl fmt::Debug for ObservedOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ObservedOp { block, index, ty, inputs, outputs, .. } = self;
        write!(f, "{ty} (block {}, operator {index}): {inputs:?} -> {outputs:?}", block.index())
    }
}

impl ObservedOp {
    /// The block of the operator.
    pub fn block(&self) -> BlockId {
        self.block
    }

    /// The position in the block.
    pub fn index(&self) -> usize {
        self.index
    }

    /// The type, as registered.
    pub fn ty(&self) -> &str {
        &self.ty
    }

    /// For a gradient operator, the description of its forward operator.
    pub fn forward(&self) -> Option<&str> {
        self.forward.as_deref()
    }

    /// The inputs whose elements the operator reads, without tensor arrays.
    pub fn inputs(&self) -> &[ObservedValue] {
        &self.inputs
    }

    /// The outputs, without tensor arrays.
    pub fn outputs(&self) -> &[ObservedValue] {
        &self.outputs
    }
}

/// A value in a slot of an operator that runs.
pub struct ObservedValue {
    pub(crate) name: String,
    pub(crate) buf: Buf<'static>,
}

impl fmt::Debug for ObservedValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} = {}: {}", self.slot(), self.name, self.meta())
    }
}

impl ObservedValue {
    /// The name of the variable.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The slot; empty for an operator that runs a block.
    pub fn slot(&self) -> &'static str {
        self.buf.slot()
    }

    /// Dtype and shape; of a sparse gradient, the dense tensor's.
    pub fn meta(&self) -> Meta {
        let dims = self.buf.decided_dims().unwrap_or_else(|| self.buf.dims().into());
        Meta::new(self.buf.dtype(), &dims[..])
    }

    /// Whether it is a sparse gradient.
    pub fn is_sparse(&self) -> bool {
        self.buf.is_sparse()
    }

    /// A copy of the value; of a sparse gradient the dense tensor.
    ///
    /// # Errors
    /// Memory runs out.
    pub fn tensor(&self) -> Result<Tensor> {
        self.buf.to_tensor()
    }

    /// The range of the elements.
    ///
    /// # Errors
    /// Memory runs out.
    pub fn range(&self) -> Result<ValueRange> {
        let mut range = ValueRange::new(self.buf.dtype());
        with_dtype!(self.buf.dtype(), T => {
            let decided;
            let elements = match self.buf.decided_dims() {
                Some(_) => {
                    decided = self.buf.to_tensor()?;
                    decided.slice::<T>()?
                }
                None if self.buf.is_sparse() => self.buf.rows::<T>()?.values(),
                None => self.buf.slice::<T>()?,
            };
            elements.iter().for_each(|x| range.add(x.to_f64()));
        });
        Ok(range)
    }
}

/// The range of the elements of a value; it prints as `from -1.5 to 2.0, 3 NaN`.
///
/// ```
/// use autobwd::{Tensor, exec::ValueRange};
/// let range = ValueRange::of(&Tensor::from_vec([3], vec![2.0_f32, f32::NAN, -1.5])?);
/// assert!(!range.is_finite());
/// assert_eq!(range.to_string(), "from -1.5 to 2.0, 1 NaN");
/// assert_eq!(range.magnitude(), f64::INFINITY);
/// # Ok::<(), autobwd::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct ValueRange {
    dtype: DType,
    /// The smallest and the largest finite number.
    ends: Option<(f64, f64)>,
    nan: usize,
    infinite: usize,
}

impl ValueRange {
    fn new(dtype: DType) -> ValueRange {
        ValueRange { dtype, ends: None, nan: 0, infinite: 0 }
    }

    /// The range of the elements of a tensor.
    pub fn of(tensor: &Tensor) -> ValueRange {
        let mut range = ValueRange::new(tensor.dtype());
        with_dtype!(tensor.dtype(), T => {
            tensor.slice::<T>().unwrap_or_default().iter().for_each(|x| range.add(x.to_f64()));
        });
        range
    }

    fn add(&mut self, x: f64) {
        if x.is_finite() {
            let (low, high) = self.ends.unwrap_or((x, x));
            self.ends = Some((low.min(x), high.max(x)));
        } else {
            self.nan += usize::from(x.is_nan());
            self.infinite += usize::from(x.is_infinite());
        }
    }

    /// Whether no element is a NaN or an infinity.
    pub fn is_finite(&self) -> bool {
        self.nan + self.infinite == 0
    }

    /// The number of elements that are a NaN.
    pub fn nan_count(&self) -> usize {
        self.nan
    }

    /// The number of elements that are an infinity.
    pub fn infinite_count(&self) -> usize {
        self.infinite
    }

    /// The largest absolute value of an element; infinite if an element is a NaN or an infinity, 0 without elements.
    pub fn magnitude(&self) -> f64 {
        match (self.is_finite(), self.ends) {
            (false, _) => f64::INFINITY,
            (true, Some((low, high))) => high.max(-low),
            (true, None) => 0.0,
        }
    }
}

impl fmt::Display for ValueRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = |x: f64| match self.dtype {
            DType::F16 | DType::BF16 | DType::F32 => format!("{:?}", x as f32),
            DType::F64 => format!("{x:?}"),
            _ => x.to_string(),
        };
        let parts = [
            self.ends.map(|(low, high)| format!("from {} to {}", number(low), number(high))),
            (self.nan > 0).then(|| format!("{} NaN", self.nan)),
            (self.infinite > 0).then(|| format!("{} infinite", self.infinite)),
        ];
        let parts: Vec<String> = parts.into_iter().flatten().collect();
        f.write_str(if parts.is_empty() { "no elements" } else { "" })?;
        f.write_str(&parts.join(", "))
    }
}

//! Anomaly detection: a check for NaN and infinities after every operator.

use std::fmt::Write as _;

use autobwd_core::{
    __private::internals::*, Buf, Cx, DType, Error, ErrorKind, Kernel, Result, tensor::ToF64, with_dtype,
};

/// The check of one operator's outputs: values with their names.
pub(super) struct Probe {
    pub(super) inputs: Vec<(String, Buf<'static>)>,
    pub(super) outputs: Vec<(String, Buf<'static>)>,
    /// The forward operator of a gradient operator.
    pub(super) forward: Option<String>,
}

impl Kernel for Probe {
    /// # Errors
    /// An output holds a NaN or an infinity.
    fn run(&mut self, _: &Cx) -> Result<()> {
        for (name, output) in self.outputs.iter().filter(|(_, output)| output.dtype().is_float()) {
            if !ValueRange::of(output)?.is_finite() {
                return Err(self.report(name)?);
            }
        }
        Ok(())
    }
}

impl Probe {
    fn report(&self, culprit: &str) -> Result<Error> {
        let mut text = format!("`{culprit}` is not finite");
        if let Some(forward) = &self.forward {
            _ = write!(text, "; it belongs to the gradient of {forward}");
        }
        for (what, bufs) in [("reads", &self.inputs), ("writes", &self.outputs)] {
            for (name, buf) in bufs {
                let (slot, rows) = (buf.slot(), if buf.is_sparse() { "rows of " } else { "" });
                let dims = buf.decided_dims().unwrap_or_else(|| buf.dims().into());
                let (dtype, range) = (buf.dtype(), ValueRange::of(buf)?.text(buf.dtype()));
                _ = write!(text, "\n  {what} {slot} = `{name}`: {rows}{dtype} {dims:?}, {range}");
            }
        }
        Ok(Error::new(ErrorKind::NotFinite, text))
    }
}

/// The value range of a tensor.
struct ValueRange {
    /// The smallest and the largest finite number.
    ends: Option<(f64, f64)>,
    nan: usize,
    infinite: usize,
}

impl ValueRange {
    fn of(buf: &Buf<'_>) -> Result<ValueRange> {
        let mut range = ValueRange { ends: None, nan: 0, infinite: 0 };
        with_dtype!(buf.dtype(), T => {
            let decided;
            let elements = match buf.decided_dims() {
                Some(_) => {
                    decided = buf.to_tensor()?;
                    decided.slice::<T>()?
                }
                None if buf.is_sparse() => buf.rows::<T>()?.values(),
                None => buf.slice::<T>()?,
            };
            elements.iter().for_each(|x| range.add(x.to_f64()));
        });
        Ok(range)
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

    fn is_finite(&self) -> bool {
        self.nan + self.infinite == 0
    }

    /// `from -1.5 to 2.0, 3 NaN`
    fn text(&self, dtype: DType) -> String {
        let number = |x: f64| match dtype {
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
        if parts.is_empty() { "no elements".into() } else { parts.join(", ") }
    }
}

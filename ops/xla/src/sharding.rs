//! Tensors that are divided among devices.
//!
//! Tensors are divided by their names. Arguments and results have the attribute `mhlo.sharding`, XLA divides the
//! computation, and a `ShardedScope` has the part of each device.

use autobwd::{__private::internals::*, DType, Error, ErrorKind, Meta, Program, Result, Scope, Tensor};
use indexmap::IndexMap;

use crate::{DeviceScope, pjrt::Device};

/// Which tensors are divided among the devices of a program, and along which dimension. All others are on every device.
///
/// The compiler divides the computation and lets the devices exchange what they need, so that a sharded program computes
/// what it does on one device (Xu et al., "GSPMD", 2021). A model that is too large for one device is sharded by its
/// parameters; a large batch, by the first dimension of the feeds. [`DeviceExecutor::run_sharded`] runs programs.
///
/// ```
/// use autobwd_xla::Sharding;
///
/// let sharding = Sharding::new().split("x", 0).split("linear_0.w", 1);
/// assert_eq!(sharding.axis("linear_0.w"), Some(1));
/// // The state of an optimizer is divided like its parameter.
/// assert_eq!(sharding.axis("linear_0.w.moment1"), Some(1));
/// assert_eq!(sharding.axis("linear_0.b"), None);
/// ```
///
/// [`DeviceExecutor::run_sharded`]: crate::DeviceExecutor::run_sharded
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sharding {
    splits: IndexMap<String, SplitAxis>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SplitAxis {
    axis: usize,
    /// Whether a program may lack the tensor.
    is_optional: bool,
}

impl Sharding {
    /// No divided tensors.
    pub fn new() -> Sharding {
        Sharding::default()
    }

    /// Divides the feed or the value of a scope with that name along a dimension, in equal parts; also values whose name
    /// continues with a dot, such as optimizer states, if their dimension can be divided.
    ///
    /// A program that runs with feeds must have a variable of that name. A program without feeds, such as a start-up
    /// program, need not.
    #[must_use]
    pub fn split(mut self, name: &str, axis: usize) -> Sharding {
        self.splits.insert(name.into(), SplitAxis { axis, is_optional: false });
        self
    }

    /// As [`split`](Sharding::split), for a tensor that some programs lack, such as the labels of a program that
    /// predicts.
    #[must_use]
    pub fn split_if_present(mut self, name: &str, axis: usize) -> Sharding {
        self.splits.insert(name.into(), SplitAxis { axis, is_optional: true });
        self
    }

    /// Refuses a name that the program lacks: a typing error would leave the tensor undivided, in silence.
    pub(crate) fn require_names(&self, program: &Program) -> Result<()> {
        let mut required = self.splits.iter().filter(|(_, split)| !split.is_optional);
        required.try_for_each(|(name, _)| match program.expect_var(name) {
            Ok(_) => Ok(()),
            Err(e) => {
                let text =
                    format!("cannot divide `{name}`, which `split_if_present` would allow to be absent: {e}");
                Err(Error::new(e.kind(), text))
            }
        })
    }

    /// The dimension along which the tensor of that name is divided, if any.
    pub fn axis(&self, name: &str) -> Option<usize> {
        let owner = |(own, _): &(&String, &SplitAxis)| {
            name.strip_prefix(own.as_str()).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        };
        self.splits.iter().filter(owner).max_by_key(|(own, _)| own.len()).map(|(_, split)| split.axis)
    }

    /// The dimension along which a tensor of that name and shape is divided among devices.
    pub(crate) fn axis_of(&self, name: &str, dims: &[usize], devices: usize) -> Result<Option<usize>> {
        let Some(axis) = self.axis(name) else { return Ok(None) };
        if dims.get(axis).is_some_and(|dim| devices > 0 && dim.is_multiple_of(devices)) {
            return Ok(Some(axis));
        }
        if !self.splits.contains_key(name) {
            return Ok(None);
        }
        let text = format!(
            "`{name}` of shape {dims:?} cannot be divided along dimension {axis} among {devices} devices"
        );
        Err(Error::new(ErrorKind::Shape, text))
    }
}

/// Named values on several devices, some of them divided. It is to a sharded program what [`DeviceScope`] is to a program
/// on one device.
#[derive(Debug)]
pub struct ShardedScope {
    sharding: Sharding,
    pub(crate) scopes: Vec<DeviceScope>,
    /// The dimensions of divided values.
    axes: IndexMap<String, usize>,
}

impl ShardedScope {
    /// An empty scope. The devices are of one client.
    pub fn new(devices: &[Device], sharding: Sharding) -> ShardedScope {
        let scopes = devices.iter().map(DeviceScope::new).collect();
        ShardedScope { sharding, scopes, axes: IndexMap::new() }
    }

    /// The divided tensors.
    pub fn sharding(&self) -> &Sharding {
        &self.sharding
    }

    /// The part of each device.
    pub fn parts(&self) -> &[DeviceScope] {
        &self.scopes
    }

    /// Dtype and shape of the value of that name, as a whole.
    pub(crate) fn meta(&self, name: &str) -> Option<Meta> {
        let part = self.scopes.first()?.get(name).ok()?;
        let mut dims = part.dims().to_vec();
        if let Some(axis) = self.axes.get(name) {
            dims[*axis] *= self.scopes.len();
        }
        Some(Meta::new(part.dtype(), &*dims))
    }

    /// Takes note of how a value is divided that a program has written.
    pub(crate) fn set_axis(&mut self, name: &str, axis: Option<usize>) {
        match axis {
            Some(axis) => _ = self.axes.insert(name.into(), axis),
            None => _ = self.axes.shift_remove(name),
        }
    }

    /// The part of each device of a feed or a value.
    pub(crate) fn divide(&self, name: &str, tensor: &Tensor) -> Result<Vec<Tensor>> {
        let n = self.scopes.len();
        match self.sharding.axis_of(name, tensor.dims(), n)? {
            Some(axis) => divide(tensor, axis, n),
            None => Ok(vec![tensor.clone(); n]),
        }
    }

    /// Sets a value; each device gets its part.
    ///
    /// # Errors
    /// A dimension that cannot be divided; failures of a device.
    pub fn set(&mut self, name: &str, value: &Tensor) -> Result<()> {
        let parts = self.divide(name, value)?;
        self.scopes.iter_mut().zip(&parts).try_for_each(|(scope, part)| scope.set(name, part))?;
        let axis = self.sharding.axis_of(name, value.dims(), self.scopes.len())?;
        self.set_axis(name, axis);
        Ok(())
    }

    /// Copies the whole value of that name to the host.
    ///
    /// # Errors
    /// An unknown name; failures of a device.
    pub fn tensor(&self, name: &str) -> Result<Tensor> {
        let Some(axis) = self.axes.get(name) else {
            let first = self.scopes.first();
            return first
                .ok_or_else(|| Error::new(ErrorKind::Device, "a scope without devices has no values"))?
                .tensor(name);
        };
        let parts: Result<Vec<Tensor>> = self.scopes.iter().map(|scope| scope.tensor(name)).collect();
        join(&parts?, *axis)
    }

    /// Sets the values of a scope of the host. Others stay.
    ///
    /// # Errors
    /// A dimension that cannot be divided; failures of a device. Then some values may be set.
    pub fn upload(&mut self, scope: &Scope) -> Result<()> {
        scope.iter().try_for_each(|(name, value)| self.set(name, value))
    }

    /// Copies all values to a scope of the host.
    ///
    /// # Errors
    /// Failures of a device; then no value is set.
    pub fn download(&self, scope: &mut Scope) -> Result<()> {
        let names = self.scopes.first().into_iter().flat_map(DeviceScope::iter).map(|(name, _)| name);
        let values: Result<Vec<_>> = names.map(|name| Ok((name, self.tensor(name)?))).collect();
        values?.into_iter().for_each(|(name, value)| scope.set(name, value));
        Ok(())
    }
}

/// The shape of a part.
pub(crate) fn divided(dims: &[usize], axis: Option<usize>, devices: usize) -> Vec<usize> {
    let mut dims = dims.to_vec();
    if let Some(axis) = axis {
        dims[axis] /= devices;
    }
    dims
}

/// Equal parts along a dimension.
fn divide(tensor: &Tensor, axis: usize, n: usize) -> Result<Vec<Tensor>> {
    let dims = divided(tensor.dims(), Some(axis), n);
    let run = run_of(tensor.dtype(), &dims, axis);
    let part = |device: usize| {
        let mut part = Tensor::zeros(tensor.dtype(), &dims)?;
        let runs = tensor.bytes().chunks_exact(run).skip(device).step_by(n);
        part.bytes_mut().chunks_exact_mut(run).zip(runs).for_each(|(to, from)| to.copy_from_slice(from));
        Ok(part)
    };
    (0..n).map(part).collect()
}

/// The inverse of [`divide`].
fn join(parts: &[Tensor], axis: usize) -> Result<Tensor> {
    let first = parts.first().ok_or_else(|| Error::internal("a tensor without parts"))?;
    let mut dims = first.dims().to_vec();
    dims[axis] *= parts.len();
    let (run, mut tensor) = (run_of(first.dtype(), first.dims(), axis), Tensor::zeros(first.dtype(), &dims)?);
    for (device, part) in parts.iter().enumerate() {
        let runs = tensor.bytes_mut().chunks_exact_mut(run).skip(device).step_by(parts.len());
        runs.zip(part.bytes().chunks_exact(run)).for_each(|(to, from)| to.copy_from_slice(from));
    }
    Ok(tensor)
}

/// The number of adjacent bytes in a tensor that are those of one part, at least 1.
fn run_of(dtype: DType, part: &[usize], axis: usize) -> usize {
    (part[axis..].iter().product::<usize>() * dtype.size()).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_equal_and_join_to_the_whole() -> Result<()> {
        let whole = Tensor::from_vec([2, 4, 3], (0..24).collect::<Vec<i32>>())?;
        let parts = divide(&whole, 1, 2)?;
        assert_eq!(parts[1].slice::<i32>()?, [6, 7, 8, 9, 10, 11, 18, 19, 20, 21, 22, 23]);
        for axis in 0..3 {
            let n = whole.dims()[axis];
            assert_eq!(join(&divide(&whole, axis, n)?, axis)?, whole);
        }
        let empty = Tensor::zeros(DType::F32, &[0, 2])?;
        assert_eq!(divide(&empty, 0, 2)?, vec![empty.clone(); 2]);
        assert_eq!(join(&divide(&empty, 1, 2)?, 1)?, empty);
        Ok(())
    }

    #[test]
    fn dimension_that_cannot_be_divided_is_an_error() {
        let sharding = Sharding::new().split("w", 1);
        assert_eq!(sharding.axis_of("w", &[3, 4], 2).unwrap(), Some(1));
        let text = |dims: &[usize]| sharding.axis_of("w", dims, 2).unwrap_err().to_string();
        assert_eq!(text(&[4, 3]), "`w` of shape [4, 3] cannot be divided along dimension 1 among 2 devices");
        assert_eq!(text(&[4]), "`w` of shape [4] cannot be divided along dimension 1 among 2 devices");
        assert_eq!(sharding.axis_of("w.beta1_pow", &[1], 2).unwrap(), None);
        assert_eq!(sharding.axis_of("w2", &[1], 2).unwrap(), None);
        assert!(sharding.axis_of("w", &[2, 0], 0).is_err());
    }
}

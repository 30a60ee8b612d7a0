//! Host or device, as the user of a program chooses.

use std::path::Path;

use autobwd::{Executor, Feed, Program, Result, Scope, Tensor};

use crate::{DeviceExecutor, DeviceScope, pjrt::Device};

/// Runs programs and keeps their values, on the host or on a device: for programs with an option `--device`.
///
/// ```
/// use autobwd::{Builder, DType, Tensor};
/// use autobwd_ops::{Init, Math};
/// use autobwd_xla::Backend;
///
/// let net = Builder::new();
/// let w = net.parameter("w", DType::F32, &[2], |w| Init::Constant(3.0).emit(w, 0));
/// let y = (net.input("x", DType::F32, &[-1, 2]) * &w).mean();
///
/// let plugin = None; // or the path of a PJRT plugin
/// let mut backend = Backend::open(plugin)?;
/// backend.run(&net.startup().program()?, &[], &[])?;
/// let x = Tensor::from_vec([1, 2], vec![1.0_f32, 2.0])?;
/// assert_eq!(backend.run(&net.program()?, &[("x", &x)], &[&y.name()])?[0].item()?, 4.5);
/// assert_eq!(backend.values()?.get("w")?.slice::<f32>()?, [3.0, 3.0]);
/// # Ok::<(), autobwd::Error>(())
/// ```
#[derive(Debug)]
pub enum Backend {
    /// All cores of the host.
    Host(Executor, Scope),
    /// One device.
    Device(DeviceExecutor, DeviceScope),
}

impl Backend {
    /// The first device of the PJRT plugin with that path; without a path, the host.
    ///
    /// # Errors
    /// Those of [`Device::load`].
    pub fn open(plugin: Option<&Path>) -> Result<Backend> {
        Ok(match plugin {
            Some(path) => Backend::Device(DeviceExecutor::new(), DeviceScope::new(&Device::load(path)?)),
            None => Backend::Host(Executor::new(), Scope::new()),
        })
    }

    /// Runs a program once and returns the fetches.
    ///
    /// # Errors
    /// Those of [`Executor::run`] and [`DeviceExecutor::run`].
    pub fn run(
        &mut self,
        program: &impl AsRef<Program>,
        feeds: &[(&str, &Tensor)],
        fetches: &[&str],
    ) -> Result<Vec<Tensor>> {
        match self {
            Backend::Host(executor, scope) => {
                let feeds: Vec<_> = feeds.iter().map(|(name, value)| (*name, *value as &dyn Feed)).collect();
                executor.run(program, scope, &feeds, fetches)
            }
            Backend::Device(executor, scope) => executor.run(program, scope, feeds, fetches),
        }
    }

    /// Sets the values of this scope. Others stay.
    ///
    /// # Errors
    /// Failures of the device; then some values may be set.
    pub fn set_values(&mut self, values: &Scope) -> Result<()> {
        match self {
            Backend::Host(_, scope) => {
                values.iter().for_each(|(name, value)| scope.set(name, value.clone()));
                Ok(())
            }
            Backend::Device(_, scope) => scope.upload(values),
        }
    }

    /// A copy of all values, to be saved.
    ///
    /// # Errors
    /// Failures of the device.
    pub fn values(&self) -> Result<Scope> {
        match self {
            Backend::Host(_, scope) => Ok(scope.clone()),
            Backend::Device(_, scope) => {
                let mut values = Scope::new();
                scope.download(&mut values)?;
                Ok(values)
            }
        }
    }
}

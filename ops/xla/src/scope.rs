//! Values that stay on a device between runs.

use std::fmt;

use autobwd::{Error, ErrorKind, Result, Scope, Tensor};
use autobwd_core::__private::{Initialisers, did_you_mean};
use indexmap::IndexMap;

use crate::pjrt::{Device, DeviceBuffer};

/// Named values on a device: parameters, optimizer states, statistics. It is to a device what
/// [`Scope`] is to the host.
///
/// ```
/// use autobwd::{Scope, Tensor};
/// use autobwd_xla::{DeviceScope, pjrt::Plugin};
///
/// let Some(plugin) = Plugin::from_env()? else {
///     println!("AUTOBWD_PJRT_PLUGIN is not set");
///     return Ok(());
/// };
/// let device = plugin.client(&Default::default())?.device(0)?;
/// let mut host = Scope::new();
/// host.set("w", Tensor::from_vec([2], vec![1.0_f32, 2.0])?);
///
/// let mut scope = DeviceScope::new(&device);
/// scope.upload(&host)?;
/// assert_eq!(scope.get("w")?.dims(), [2]);
/// scope.download(&mut host)?;
/// # Ok::<(), autobwd::Error>(())
/// ```
pub struct DeviceScope {
    device: Device,
    values: IndexMap<String, DeviceBuffer>,
    /// The operators that initialised values.
    pub(crate) initialisers: Initialisers,
}

impl DeviceScope {
    /// An empty scope.
    pub fn new(device: &Device) -> DeviceScope {
        DeviceScope { device: device.clone(), values: IndexMap::new(), initialisers: Initialisers::default() }
    }

    /// The device.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The value of that name.
    ///
    /// # Errors
    /// An unknown name; similar names are suggested.
    pub fn get(&self, name: &str) -> Result<&DeviceBuffer> {
        self.find(name).ok_or_else(|| {
            let hint = did_you_mean(name, self.values.keys().map(String::as_str));
            Error::new(ErrorKind::NoValue, format!("the scope on {} has no `{name}`{hint}", self.device))
        })
    }

    /// The value of that name, if there is one.
    pub fn find(&self, name: &str) -> Option<&DeviceBuffer> {
        self.values.get(name)
    }

    /// Copies the value of that name to the host.
    ///
    /// # Errors
    /// An unknown name; failures of the device.
    pub fn tensor(&self, name: &str) -> Result<Tensor> {
        self.get(name)?.download()
    }

    /// Sets a value to a copy of the tensor. Any startup program may initialise it again.
    ///
    /// # Errors
    /// Failures of the device.
    pub fn set(&mut self, name: &str, value: &Tensor) -> Result<()> {
        let buffer = self.device.upload(value)?;
        self.initialisers.remove(name);
        self.insert(name, buffer)
    }

    /// Sets a value without a copy.
    ///
    /// # Errors
    /// A buffer on another device.
    pub fn insert(&mut self, name: &str, value: DeviceBuffer) -> Result<()> {
        if *value.device() != self.device {
            let message = format!("`{name}` is on {}, and the scope on {}", value.device(), self.device);
            return Err(Error::new(ErrorKind::Device, message));
        }
        match self.values.get_mut(name) {
            Some(old) => *old = value,
            None => {
                self.values.insert(name.into(), value);
            }
        }
        Ok(())
    }

    /// Removes a value and returns it.
    pub fn remove(&mut self, name: &str) -> Option<DeviceBuffer> {
        self.initialisers.remove(name);
        self.values.shift_remove(name)
    }

    /// Sets the values of a scope of the host. Others stay.
    ///
    /// # Errors
    /// Failures of the device; then some values may be set.
    pub fn upload(&mut self, scope: &Scope) -> Result<()> {
        scope.iter().try_for_each(|(name, value)| self.set(name, value))
    }

    /// Copies all values to a scope of the host.
    ///
    /// # Errors
    /// Failures of the device; then no value is set.
    pub fn download(&self, scope: &mut Scope) -> Result<()> {
        let values: Result<Vec<_>> = self.iter().map(|(name, value)| Ok((name, value.download()?))).collect();
        values?.into_iter().for_each(|(name, value)| scope.set(name, value));
        Ok(())
    }

    /// Names and values, in insertion order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &DeviceBuffer)> {
        self.values.iter().map(|(name, value)| (name.as_str(), value))
    }

    /// The number of values.
    pub fn len(&self) -> usize {
        self.values.len()
    }

    /// Whether there are no values.
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }
}

impl fmt::Debug for DeviceScope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DeviceScope({}, {} values)", self.device, self.len())
    }
}

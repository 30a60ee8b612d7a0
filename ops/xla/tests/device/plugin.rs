//! Clients and devices of the plugin.

use autobwd::{Result, Tensor};
use autobwd_xla::pjrt::{Client, ClientOptions, Device};

use crate::common::plugin;

/// A client with so many virtual devices.
pub(crate) fn client(devices: i64) -> Result<Client> {
    plugin()?.client(&ClientOptions::new().set("cpu_device_count", devices))
}

/// A device of a client without others.
pub(crate) fn device() -> Result<Device> {
    client(1)?.device(0)
}

/// A vector.
pub(crate) fn tensor(elements: &[f32]) -> Tensor {
    Tensor::from_vec([elements.len()], elements.to_vec()).unwrap()
}

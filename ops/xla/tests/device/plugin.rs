//! The plugin that the tests use.

use std::io::Write;

use autobwd::Tensor;
use autobwd_xla::pjrt::{Client, ClientOptions, Device, Plugin};

/// The plugin, if there is one.
pub(crate) fn plugin() -> Option<Plugin> {
    let plugin = Plugin::from_env().unwrap();
    if plugin.is_none() {
        // The test runner captures `eprintln!` alone.
        std::io::stderr().write_all(b"AUTOBWD_PJRT_PLUGIN is not set: the test ends here\n").unwrap();
    }
    plugin
}

/// A client with so many virtual devices.
pub(crate) fn client(devices: i64) -> Option<Client> {
    Some(plugin()?.client(&ClientOptions::new().set("cpu_device_count", devices)).unwrap())
}

/// A device of a client without others.
pub(crate) fn device() -> Option<Device> {
    Some(client(1)?.device(0).unwrap())
}

/// A vector.
pub(crate) fn tensor(elements: &[f32]) -> Tensor {
    Tensor::from_vec([elements.len()], elements.to_vec()).unwrap()
}

//! The runner of tests, and devices.

use autobwd::Result;
use autobwd_xla::pjrt::{ClientOptions, Device};

#[path = "../../ops/xla/tests/common/runner.rs"]
mod runner;

pub(crate) use runner::{run, tests};

/// So many virtual devices.
pub(crate) fn devices(number: i64) -> Result<Vec<Device>> {
    Ok(runner::plugin()?.client(&ClientOptions::new().set("cpu_device_count", number))?.devices())
}

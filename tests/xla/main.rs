//! Programs on devices of XLA: training steps, training on two devices, and the conformance corpus. Values need a PJRT
//! plugin for the CPU, whose path is in the environment variable `AUTOBWD_PJRT_PLUGIN`; without it programs are lowered
//! alone, and the tests say so.

mod corpus;
mod replicas;
mod training;

use std::io::Write as _;

use autobwd::Result;
use autobwd_xla::pjrt::{ClientOptions, Device, Plugin};

/// So many virtual devices, if there is a plugin.
fn devices(number: i64) -> Result<Option<Vec<Device>>> {
    let Some(plugin) = Plugin::from_env()? else {
        // The test runner captures `eprintln!` alone.
        let text = b"AUTOBWD_PJRT_PLUGIN is not set: programs are lowered, but not run\n";
        std::io::stderr().write_all(text).expect("stderr is there");
        return Ok(None);
    };
    Ok(Some(plugin.client(&ClientOptions::new().set("cpu_device_count", number))?.devices()))
}

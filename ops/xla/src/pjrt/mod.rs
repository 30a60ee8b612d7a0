//! Devices of XLA: plugins, clients, buffers and compiled programs.
//!
//! [PJRT](https://openxla.org/xla/pjrt) is the C interface of XLA's compilers and runtimes. A plugin is a shared library
//! that implements it for some kind of device. It is loaded when the program runs, so that nothing of XLA is needed to
//! build this crate; version 0.57 of the interface or later is needed.
//!
//! A [`Plugin`] makes a [`Client`], which has [`Device`]s. A device compiles the text of a StableHLO module to an
//! [`Executable`], which runs on [`DeviceBuffer`]s. All of them may be used by several threads.
//!
//! All unsafe code of the crate is in this module. `table` calls the plugin's functions; a handle keeps its client, and
//! buffers and executables are destroyed when they are dropped.

mod buffer;
mod client;
mod elf;
mod executable;
mod options;
mod plugin;
mod saved;
mod signature;
mod sys;
mod table;

pub use buffer::DeviceBuffer;
pub use client::{Client, Device, DeviceMemory};
pub use executable::{Executable, Input, ProgramMemory};
pub use options::{ClientOptions, CompileOptions, OptionValue};
pub use plugin::Plugin;
pub use signature::Parameter;

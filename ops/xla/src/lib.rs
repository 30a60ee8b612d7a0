//! Programs of autobwd on GPUs, TPUs and other devices.
//!
//! A program with known shapes is lowered to StableHLO text ([`Lowered`]), which a PJRT plugin of XLA compiles and runs.
//! The plugin is a shared library, which is loaded when the program runs: this crate needs nothing of XLA to be built.
//! Python packages contain plugins; `pip download lammps-jax-pjrt-cpu` has one for the CPU.
//!
//! [`DeviceExecutor`] runs programs, and [`DeviceScope`] keeps their values on a device:
//!
//! ```
//! use autobwd::{Builder, DType, Tensor};
//! use autobwd_ops::{Init, Math};
//! use autobwd_xla::{DeviceExecutor, DeviceScope, pjrt::{ClientOptions, Plugin}};
//!
//! let net = Builder::new();
//! let w = net.parameter("w", DType::F32, &[2], |w| Init::Constant(3.0).emit(w, 0));
//! let y = (net.input("x", DType::F32, &[-1, 2]) * &w).mean();
//!
//! // The path of a plugin is in the environment variable AUTOBWD_PJRT_PLUGIN.
//! let Some(plugin) = Plugin::from_env()? else {
//!     println!("AUTOBWD_PJRT_PLUGIN is not set");
//!     return Ok(());
//! };
//! let device = plugin.client(&ClientOptions::new())?.device(0)?;
//! let (mut executor, mut scope) = (DeviceExecutor::new(), DeviceScope::new(&device));
//! executor.run(&net.startup().program()?, &mut scope, &[], &[])?;
//! let x = Tensor::from_vec([1, 2], vec![1.0_f32, 2.0])?;
//! let fetched = executor.run(&net.program()?, &mut scope, &[("x", &x)], &[&y.name()])?;
//! assert_eq!(fetched[0].item()?, 4.5);
//! # Ok::<(), autobwd::Error>(())
//! ```
//!
//! [`Backend`] is either of host and device, for programs whose user chooses.

mod backend;
mod compiled;
mod executor;
pub mod lower;
mod lowered;
pub mod pjrt;
mod scope;
mod sharding;

pub use backend::Backend;
pub use compiled::CompiledProgram;
pub use executor::DeviceExecutor;
pub use lowered::{Argument, Lowered, Output, Source, Target};
pub use scope::DeviceScope;
pub use sharding::{ShardedScope, Sharding};

/// For generated code.
#[doc(hidden)]
pub mod __private {
    pub use autobwd_core::__private::inventory;
}

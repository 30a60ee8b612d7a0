//! Programs of autobwd on GPUs, TPUs and other devices.
//!
//! A program with known shapes is lowered to StableHLO text ([`Lowered`]), which a PJRT plugin of XLA compiles and runs.
//! The plugin is a shared library, which is loaded when the program runs: this crate needs nothing of XLA to be built.
//! Python packages contain plugins; `pip download lammps-jax-pjrt-cpu` has one for the CPU.
//!
//! ```
//! use autobwd::{DType, Tensor};
//! use autobwd_xla::{Argument, DeviceScope, Lowered, Output, ProgramCache, pjrt::{ClientOptions, Plugin}};
//!
//! // The path of a plugin is in the environment variable AUTOBWD_PJRT_PLUGIN.
//! let Some(plugin) = Plugin::from_env()? else {
//!     println!("AUTOBWD_PJRT_PLUGIN is not set");
//!     return Ok(());
//! };
//! let device = plugin.client(&ClientOptions::new())?.device(0)?;
//!
//! // One step of `w = w + x`, which returns the sum of `w` before the step.
//! let lowered = Lowered {
//!     text: "module @step {
//!       func.func public @main(%x: tensor<2xf32>, %w: tensor<2xf32> {tf.aliasing_output = 1 : i32})
//!           -> (tensor<f32>, tensor<2xf32>) {
//!         %zero = stablehlo.constant dense<0.0> : tensor<f32>
//!         %sum = stablehlo.reduce(%w init: %zero) applies stablehlo.add across dimensions = [0]
//!           : (tensor<2xf32>, tensor<f32>) -> tensor<f32>
//!         %next = stablehlo.add %w, %x : tensor<2xf32>
//!         return %sum, %next : tensor<f32>, tensor<2xf32>
//!       }
//!     }"
//!     .into(),
//!     arguments: vec![
//!         Argument::feed("x", DType::F32, [2]),
//!         Argument::state("w", DType::F32, [2]).donated(),
//!     ],
//!     results: vec![Output::fetch("sum", DType::F32, []), Output::state("w", DType::F32, [2])],
//! };
//!
//! let mut scope = DeviceScope::new(&device);
//! scope.set("w", &Tensor::from_vec([2], vec![1.0_f32, 2.0])?)?;
//! let x = Tensor::from_vec([2], vec![10.0_f32, 20.0])?;
//!
//! // The program is compiled once. `w` stays on the device, in the same memory.
//! let programs = ProgramCache::new(&device);
//! let address = scope.get("w")?.address()?;
//! for expected in [3.0, 33.0, 63.0] {
//!     let fetched = programs.run(&lowered, &mut scope, &[("x", &x)], &["sum"])?;
//!     assert_eq!(fetched[0].item()?, expected);
//! }
//! assert_eq!(scope.tensor("w")?.slice::<f32>()?, [31.0, 62.0]);
//! assert_eq!((programs.len(), scope.get("w")?.address()?), (1, address));
//! # Ok::<(), autobwd::Error>(())
//! ```

mod compiled;
pub mod lower;
mod lowered;
pub mod pjrt;
mod scope;

pub use compiled::{CompiledProgram, ProgramCache};
pub use lowered::{Argument, Lowered, Output, Source, Target};
pub use scope::DeviceScope;

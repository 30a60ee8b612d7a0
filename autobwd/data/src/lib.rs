//! Data for training: data sets, and a loader that makes shuffled batches of them.
//!
//! A [`Dataset`] is a numbered list of examples whose fields are named after the feeds of a program: arrays
//! ([`TensorDataset`]), tables in CSV files ([`CsvColumns`], with missing cells, categories and scales), NumPy's files ([`load_npz`]), text ([`TextWindows`]) and,
//! with the feature `images`, folders of images (`ImageFolder`). A [`Loader`] delivers its batches, epoch by epoch: shuffled by a seed,
//! split among processes, read ahead by a thread, and resumable in the middle of an epoch with the same batches.
//!
//! ```
//! use autobwd::{Builder, DType, Executor, Scope, Tensor};
//! use autobwd_data::{Loader, TensorDataset};
//! use autobwd_ops::{Math, nn::Linear, optim::{Adam, Optimizer}};
//!
//! // Points of the line y = 3 x.
//! let x: Vec<f32> = (0..100).map(|k| k as f32 / 100.0).collect();
//! let y = x.iter().map(|x| 3.0 * x).collect();
//! let data = TensorDataset::new([
//!     ("x", Tensor::from_vec([100, 1], x)?),
//!     ("y", Tensor::from_vec([100, 1], y)?),
//! ])?;
//! let mut loader = Loader::builder(data).batch(25).shuffle(7).build()?;
//!
//! let net = Builder::new();
//! let (x, y) = (net.input("x", DType::F32, &[-1, 1]), net.input("y", DType::F32, &[-1, 1]));
//! let loss = Linear::builder(&net, 1, 1).build().forward(&x).square_error(&y).mean();
//! Adam::new(0.05).minimize(&loss)?.complete()?;
//!
//! let (mut executor, mut scope) = (Executor::new(), Scope::new());
//! executor.run(&net.startup().program()?, &mut scope, &[], &[])?;
//! let feeds = [("x", autobwd::Meta::new(DType::F32, [25, 1])), ("y", autobwd::Meta::new(DType::F32, [25, 1]))];
//! let mut session = executor.prepare(&net.program()?, &mut scope, &feeds, &[&loss.name()])?;
//! while loader.position().epoch < 40 {
//!     for batch in loader.epoch() {
//!         for (name, tensor) in &batch? {
//!             session.feed(name, tensor)?;
//!         }
//!         session.run(&mut scope)?;
//!     }
//! }
//! assert!(session.item(&loss.name())? < 0.01);
//! # Ok::<(), autobwd::Error>(())
//! ```
//!
//! [`Subset::split`] divides a data set, and [`CsvTable::split`] a table, into parts to train and to test.
//! [`Loader::state`] and [`Loader::resume`] keep the position in a checkpoint. With the feature `progress`, `Progress` shows
//! how far a loop is.

mod csv;
mod dataset;
mod fingerprint;
#[cfg(feature = "images")]
mod image_decoder;
#[cfg(feature = "images")]
mod image_folder;
mod loader;
mod npz;
mod order;
#[cfg(feature = "progress")]
mod progress;
mod split;
mod subset;
mod tensor_dataset;
mod text_windows;

pub use csv::{CategoryColumn, CsvColumn, CsvColumns, CsvEncoder, CsvTable, Fill, NumberColumn, Scaling};
pub use dataset::{Batch, Dataset};
#[cfg(feature = "images")]
pub use image_decoder::ImageDecoder;
#[cfg(feature = "images")]
pub use image_folder::{ImageFolder, ImageFolderBuilder};
pub use loader::{Loader, LoaderBuilder, Position};
pub use npz::{load_npz, save_npz};
#[cfg(feature = "progress")]
pub use progress::Progress;
pub use subset::Subset;
pub use tensor_dataset::TensorDataset;
pub use text_windows::{TextUnit, TextWindows};

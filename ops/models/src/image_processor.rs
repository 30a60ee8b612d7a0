//! Pixels of images, as vision transformers read them.

use std::path::Path;

use autobwd::{Result, Tensor};
use autobwd_data::ImageDecoder;
use serde_json::{Value, json};

use crate::{config::Config, file::read_object};

/// The largest height and width, in pixels.
const LARGEST_SIDE: u64 = 1 << 12;

/// Computes the pixels of images with the settings of a folder's `preprocessor_config.json`, as the class
/// `ViTImageProcessor` of transformers does: images are resized, and the channels are scaled and normalised. A resized pixel
/// differs by a 255th at most from Pillow's, which rounds between both directions.
///
/// ```no_run
/// use autobwd_models::ImageProcessor;
///
/// let processor = ImageProcessor::open("vit-base-patch16-224")?;
/// let pixels = processor.pixel_values("cat.jpg")?;
/// assert_eq!(pixels.dims(), [1, 3, 224, 224]);
/// # Ok::<(), autobwd::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct ImageProcessor {
    decoder: ImageDecoder,
    /// The factor and the term of each channel, for pixels from 0 to 1.
    channels: Vec<[f32; 2]>,
}

impl ImageProcessor {
    /// The settings of a folder: `size`, `rescale_factor`, `image_mean` and `image_std`.
    ///
    /// # Errors
    /// Files that cannot be read; one list of all keys whose values are not supported.
    pub fn open(folder: impl AsRef<Path>) -> Result<ImageProcessor> {
        let path = folder.as_ref().join("preprocessor_config.json");
        let config = Config::new(read_object(&path)?);
        // Bilinear.
        for (key, supported) in [
            ("do_resize", json!(true)),
            ("resample", json!(2)),
            ("do_center_crop", json!(false)),
            ("do_pad", json!(false)),
        ] {
            config.require(key, &supported);
        }
        let [height, width] = sides(&config);
        let factor = match config.flag("do_rescale", true) {
            true => 255.0 * config.number("rescale_factor", 1.0 / 255.0),
            false => 255.0,
        };
        let is_normalized = config.flag("do_normalize", true);
        let [means, deviations] = [("image_mean", 0.0), ("image_std", 1.0)].map(|(key, neutral)| {
            let given = is_normalized.then(|| numbers(&config, key)).flatten();
            given.unwrap_or([if is_normalized { 0.5 } else { neutral }; 3])
        });
        if deviations.contains(&0.0) {
            config.refuse("`image_std` is 0");
        }
        config.require_no_obstacles(&format!("cannot read `{}`", path.display()))?;
        let scaled =
            |(mean, deviation): (f64, f64)| [(factor / deviation) as f32, (-mean / deviation) as f32];
        let channels = means.into_iter().zip(deviations).map(scaled).collect();
        Ok(ImageProcessor { decoder: ImageDecoder::new(height, width)?, channels })
    }

    /// Channels, height and width of a result.
    pub fn dims(&self) -> [usize; 3] {
        self.decoder.dims()
    }

    /// The pixels of a file of PNG or JPEG, float32 `[1, channels, height, width]`.
    ///
    /// # Errors
    /// Those of [`ImageDecoder::decode`].
    pub fn pixel_values(&self, path: impl AsRef<Path>) -> Result<Tensor> {
        let mut pixels = self.decoder.decode(path)?.slice::<f32>()?.to_vec();
        let [channels, height, width] = self.dims();
        for (plane, [factor, term]) in pixels.chunks_exact_mut(height * width).zip(&self.channels) {
            plane.iter_mut().for_each(|pixel| *pixel = *pixel * factor + term);
        }
        Tensor::from_vec([1, channels, height, width], pixels)
    }
}

/// The height and width in `size`: one number, or two with names.
fn sides(config: &Config) -> [usize; 2] {
    let is_side = |side: &u64| (1..=LARGEST_SIDE).contains(side);
    let side = |value: &Value| value.as_u64().filter(is_side).map(|side| side as usize);
    let both = |size: &Value| match side(size) {
        Some(side) => Some([side; 2]),
        None => Some([side(size.get("height")?)?, side(size.get("width")?)?]),
    };
    config.read("size", &format!("a height and a width from 1 to {LARGEST_SIDE}"), both).unwrap_or([224; 2])
}

/// A number for each channel.
fn numbers(config: &Config, key: &str) -> Option<[f64; 3]> {
    let numbers = |value: &Value| {
        let list: Option<Vec<f64>> = value.as_array()?.iter().map(Value::as_f64).collect();
        <[f64; 3]>::try_from(list?).ok().filter(|list| list.iter().all(|x| x.is_finite()))
    };
    config.read(key, "three numbers", numbers)
}

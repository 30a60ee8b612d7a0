//! Images and sounds to learn from, as files that lines of JSON name.

use std::path::{Path, PathBuf};

use autobwd::Result;

#[cfg(feature = "images")]
use super::examples::{class, given};
use super::{
    Example, Features,
    examples::{parse, read_lines, refused, text},
};
#[cfg(feature = "images")]
use crate::ImageProcessor;
use crate::{FeatureExtractor, Tokenizer};

/// Images with classes: a line of the file is an object with the path of a PNG or JPEG in one field, relative to the folder
/// of the file, and a class in another, by its number or its name.
///
/// # Errors
/// Those of the file system; one list of the lines that are no examples, or whose images cannot be decoded.
#[cfg(feature = "images")]
pub fn read_images(
    path: impl AsRef<Path>,
    [image, label]: [&str; 2],
    names: &[String],
    processor: &ImageProcessor,
) -> Result<Vec<Example>> {
    let path = path.as_ref();
    read_lines(path, |line| {
        let object = parse(line).map_err(refused)?;
        let features = Features::Image(beside(path, text(&object, image)?), processor.clone());
        features.read()?;
        let labels = vec![class(given(&object, label)?, label, names)?];
        Ok(Example { features: Some(features), labels, ..Example::default() })
    })
}

/// Sounds with what is said in them: a line of the file is an object with the path of a WAV in one field, relative to the
/// folder of the file, and a text in another. The decoder starts with the tokens of a
/// [`transcription_prompt`](crate::transcription_prompt).
///
/// # Errors
/// Those of the file system; one list of the lines that are no examples, or whose sounds cannot be read.
pub fn read_sounds(
    path: impl AsRef<Path>,
    [sound, transcript]: [&str; 2],
    prompt: &[i64],
    (tokenizer, extractor): (&Tokenizer, &FeatureExtractor),
) -> Result<Vec<Example>> {
    let path = path.as_ref();
    read_lines(path, |line| {
        let object = parse(line).map_err(refused)?;
        let features = Features::Sound(beside(path, text(&object, sound)?), extractor.clone());
        features.read()?;
        // The first token is fed to the decoder, and not learned.
        let mut labels = prompt.get(1..).unwrap_or_default().to_vec();
        labels.extend(tokenizer.encode_plain(text(&object, transcript)?)?);
        labels.extend(tokenizer.eos_token_id());
        Ok(Example { features: Some(features), labels, ..Example::default() })
    })
}

/// A path that a file of examples names.
fn beside(examples: &Path, path: &str) -> PathBuf {
    examples.parent().map_or_else(|| path.into(), |folder| folder.join(path))
}

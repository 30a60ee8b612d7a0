//! Folders of images, one folder a class.

use std::{
    fs,
    path::{Path, PathBuf},
};

use autobwd_core::{DType, Error, ErrorKind, Result, Tensor};

use crate::{Batch, Dataset, ImageDecoder, fingerprint::Fingerprint, image_decoder::io_error};

/// Images with labels: the files `folder/class/*.png` and `*.jpg`. They are decoded when a batch is read.
///
/// A field `x` has the images, float32 `[n, channels, height, width]`, 0 to 1; a field `y` the labels, int64 `[n, 1]`:
/// the position of the class among the sorted names of the folders.
///
/// ```no_run
/// use autobwd_data::{ImageFolder, Loader};
///
/// let flowers = ImageFolder::builder("flowers/training", 64, 64).build()?;
/// println!("{:?}", flowers.classes());
/// let mut loader = Loader::builder(flowers).batch(32).shuffle(0).prefetch(4).build()?;
/// for batch in loader.epoch() {
///     assert_eq!(batch?.get("x")?.dims()[1..], [3, 64, 64]);
/// }
/// # Ok::<(), autobwd::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct ImageFolder {
    decoder: ImageDecoder,
    fields: [String; 2],
    classes: Vec<String>,
    /// Files and the numbers of their classes.
    files: Vec<(PathBuf, usize)>,
    fingerprint: u64,
}

/// The options of an [`ImageFolder`].
#[derive(Clone, Debug)]
pub struct ImageFolderBuilder {
    folder: PathBuf,
    height: usize,
    width: usize,
    is_gray: bool,
    fields: [String; 2],
}

impl ImageFolderBuilder {
    /// One channel of brightness instead of red, green and blue.
    #[must_use]
    pub fn gray(self) -> ImageFolderBuilder {
        ImageFolderBuilder { is_gray: true, ..self }
    }

    /// The names of the fields, `x` and `y` by default.
    #[must_use]
    pub fn fields(self, images: &str, labels: &str) -> ImageFolderBuilder {
        ImageFolderBuilder { fields: [images, labels].map(String::from), ..self }
    }

    /// Lists the files. Hidden files and files with other extensions than `png`, `jpg` and `jpeg` are no examples.
    ///
    /// # Errors
    /// The errors of the file system, with the path; a height or width of 0 or above 32,768; a folder without folders;
    /// a class without images.
    pub fn build(self) -> Result<ImageFolder> {
        let refuse = |path: &Path, text: &str| {
            Err(Error::new(ErrorKind::Data, format!("`{}`: {text}", path.display())))
        };
        let mut decoder = ImageDecoder::new(self.height, self.width)?;
        if self.is_gray {
            decoder = decoder.gray();
        }
        let (mut classes, mut files) = (vec![], vec![]);
        let mut hash = Fingerprint::default().number(self.height as u64).number(self.width as u64);
        hash = hash.number(self.is_gray.into());
        for folder in entries(&self.folder)?.into_iter().filter(|path| path.is_dir()) {
            let class = name(&folder);
            hash = hash.bytes(&class);
            let first = files.len();
            for file in entries(&folder)?.into_iter().filter(|path| is_image(path)) {
                let size = fs::metadata(&file).map_err(|e| io_error(&file, e))?.len();
                hash = hash.bytes(name(&file)).number(size);
                files.push((file, classes.len()));
            }
            if files.len() == first {
                return refuse(&folder, "this class has no .png, .jpg or .jpeg files");
            }
            classes.push(class);
        }
        if classes.is_empty() {
            return refuse(&self.folder, "there are no folders, one for each class");
        }
        Ok(ImageFolder { decoder, fields: self.fields, classes, files, fingerprint: hash.finish() })
    }
}

/// What a folder contains, without hidden entries, sorted by name.
fn entries(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(folder).and_then(|entries| entries.collect::<std::io::Result<Vec<_>>>());
    let entries = entries.map_err(|e| io_error(folder, e))?;
    let mut paths: Vec<PathBuf> = entries.into_iter().map(|entry| entry.path()).collect();
    paths.retain(|path| !name(path).starts_with('.'));
    paths.sort();
    Ok(paths)
}

fn name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

fn is_image(path: &Path) -> bool {
    let extension = path.extension().unwrap_or_default().to_string_lossy().to_lowercase();
    ["png", "jpg", "jpeg"].contains(&extension.as_str()) && path.is_file()
}

impl ImageFolder {
    /// The images below a folder, all resized to this height and width in pixels.
    pub fn builder(folder: impl AsRef<Path>, height: usize, width: usize) -> ImageFolderBuilder {
        let (folder, fields) = (folder.as_ref().to_path_buf(), ["x", "y"].map(String::from));
        ImageFolderBuilder { folder, height, width, is_gray: false, fields }
    }

    /// The names of the classes, by label.
    pub fn classes(&self) -> &[String] {
        &self.classes
    }
}

impl Dataset for ImageFolder {
    fn len(&self) -> usize {
        self.files.len()
    }

    fn batch(&self, indices: &[usize]) -> Result<Batch> {
        let [images, labels] = &self.fields;
        let [channels, height, width] = self.decoder.dims();
        let mut pixels = Tensor::zeros(DType::F32, &[indices.len(), channels, height, width])?;
        let mut classes = Vec::with_capacity(indices.len());
        for (to, index) in pixels.slice_mut::<f32>()?.chunks_exact_mut(channels * height * width).zip(indices)
        {
            let (path, class) = self.files.get(*index).ok_or_else(|| {
                let text = format!("there is no image {index}: the data set has {}", self.len());
                Error::new(ErrorKind::NoValue, text)
            })?;
            to.copy_from_slice(self.decoder.decode(path)?.slice()?);
            classes.push(*class as i64);
        }
        Batch::new([(images, pixels), (labels, Tensor::from_vec([indices.len(), 1], classes)?)])
    }

    fn fingerprint(&self) -> u64 {
        self.fingerprint
    }
}

//! Boxes of several images, in one list.

use autobwd::{Buf, DType, Error, Meta, Result, tensor::Dim};

use crate::gather::{are_numbers, number};

/// Checks images, `[images, channels, height, width]`, boxes, `[n, 4]`, and how many each image has; returns `n` and the
/// channels.
pub(super) fn infer_rois(x: &Meta, rois: &Meta, numbers: &Option<Meta>) -> Result<(Dim, Dim)> {
    x.float()?;
    rois.same_dtype(x)?;
    let [images, channels, height, width] = x.unpack()?;
    x.require(height != 0 && width != 0, || "at least one row and column is needed".into())?;
    let n = match *rois.dims {
        [n, four] if four.agrees(4.into()) => n,
        _ => return Err(rois.wrong("boxes, [n, 4], are needed")),
    };
    match numbers {
        None => x.require(images.agrees(1.into()), || "one image is needed without `RoisNum`".into())?,
        Some(numbers) => {
            are_numbers(numbers)?;
            let fits = numbers.dims.agrees(&[images]);
            numbers.require(fits, || format!("[{images}] is needed, a number for each image"))?;
        }
    }
    Ok((n, channels))
}

/// Boxes, and how many of them each image has.
pub(super) struct Rois<'a> {
    boxes: &'a Buf<'a>,
    numbers: Option<&'a Buf<'a>>,
}

impl<'a> Rois<'a> {
    pub(super) fn new(boxes: &'a Buf<'a>, numbers: Option<&'a Buf<'a>>) -> Result<Rois<'a>> {
        let rois = Rois { boxes, numbers };
        if let Some(numbers) = numbers {
            let mut sum = Some(0);
            for i in 0..numbers.numel() {
                let own = usize::try_from(number(numbers, i)?).ok();
                sum = sum.zip(own).and_then(|(sum, own): (usize, usize)| sum.checked_add(own));
            }
            if sum != Some(rois.count()) {
                let text = format!("numbers of at least 0 with sum {} are needed", rois.count());
                return Err(Error::data(format!("`{}`: {text}", numbers.slot())));
            }
        }
        Ok(rois)
    }

    pub(super) fn count(&self) -> usize {
        self.boxes.dims()[0]
    }

    /// The image of a box.
    pub(super) fn image(&self, roi: usize) -> usize {
        let Some(numbers) = self.numbers else { return 0 };
        let mut end = 0;
        for image in 0..numbers.numel() {
            // The numbers have been read before.
            end += number(numbers, image).map_or(0, |own| own as usize);
            if roi < end {
                return image;
            }
        }
        0
    }

    /// The coordinates of a box: left, top, right, bottom.
    pub(super) fn corners(&self, roi: usize) -> [f64; 4] {
        let corners = |i: usize| match self.boxes.dtype() {
            DType::F64 => self.boxes.slice::<f64>().map_or(f64::NAN, |all| all[roi * 4 + i]),
            _ => self.boxes.slice::<f32>().map_or(f64::NAN, |all| all[roi * 4 + i].into()),
        };
        [0, 1, 2, 3].map(corners)
    }
}

//! Deformable convolution: `deformable_conv` and `deformable_conv_v1`.

use autobwd::{
    Attrs, Composed, Composition, DType, Dims, Expr, Infer, Meta, Result, Var, check::*, register_op,
    tensor::Dim,
};

use crate::{
    Math,
    math::{DimExpr, positions, product, sizes},
    windows::{AxisWindows, PaddingAlgorithm, Windows, axes},
};

/// The attributes of deformable convolutions.
#[derive(Attrs, Clone, Debug)]
pub struct DeformableConvAttrs {
    /// Strides of the windows, vertical and horizontal.
    #[attr(default = [1, 1])]
    pub strides: Vec<i32>,
    /// Padding: vertical and horizontal.
    #[attr(default = [0, 0])]
    pub paddings: Vec<i32>,
    /// Dilation of the windows, vertical and horizontal.
    #[attr(default = [1, 1])]
    pub dilations: Vec<i32>,
    /// Number of groups of channels, each with filters of its own.
    #[attr(default = 1, min = 1)]
    pub groups: i32,
    /// Number of groups of channels, each with offsets of its own.
    #[attr(default = 1, min = 1)]
    pub deformable_groups: i32,
    /// Accepted for compatibility: images that the reference computes together.
    #[attr(default = 64)]
    pub im2col_step: i32,
}

impl DeformableConvAttrs {
    fn axes(&self) -> Result<[AxisWindows; 2]> {
        axes(&self.strides, &self.paddings, PaddingAlgorithm::Explicit, &self.dilations)
    }

    /// The dimensions of the output.
    fn convolved(&self, [input, filter, offset]: [&Meta; 3], mask: Option<&Meta>) -> Result<Dims> {
        input.float()?;
        let others = [Some(filter), Some(offset), mask].into_iter().flatten();
        others.into_iter().try_for_each(|other| other.same_dtype(input))?;
        let [images, channels, size @ ..] = input.unpack::<4>()?;
        let [filters, share, kernel @ ..] = filter.unpack::<4>()?;
        let is_multiple = |n: Dim, of: i32| n.get().is_none_or(|n| n.is_multiple_of(of as usize));
        filter.require(is_multiple(filters, self.groups), || {
            format!("a number of filters divisible by {} groups is needed", self.groups)
        })?;
        filter.require((share * i64::from(self.groups)).agrees(channels), || {
            format!("filters of {channels} channels in {} groups are needed", self.groups)
        })?;
        input.require(is_multiple(channels, self.deformable_groups), || {
            format!("a number of channels divisible by {} groups is needed", self.deformable_groups)
        })?;
        filter.require(!kernel.contains(&Dim::from(0)), || {
            "windows of at least one element are needed".into()
        })?;
        let mut counts = [Dim::UNKNOWN; 2];
        for (i, axis) in self.axes()?.into_iter().enumerate() {
            let (Some(kernel), Some(size)) = (kernel[i].get(), size[i].get()) else { continue };
            let windows: Windows = axis.windows(kernel, size);
            let count = windows.count(size, false).filter(|_| size > 0);
            counts[i] = count.ok_or_else(|| windows.too_large(input, "rows and columns"))?.into();
        }
        let taps = kernel[0] * kernel[1] * i64::from(self.deformable_groups);
        let needs = |x: &Meta, each: i64| {
            let needed = [images, taps * each, counts[0], counts[1]];
            x.require(x.dims.agrees(&needed), || {
                format!("{} is needed, {each} for each element of a window", Dims::from_iter(needed))
            })
        };
        needs(offset, 2)?;
        mask.map_or(Ok(()), |mask| needs(mask, 1))?;
        Ok(Dims::from_iter([images, filters, counts[0], counts[1]]))
    }

    fn compose(&self, [input, filter, offset]: [&Expr; 3], mask: Option<&Expr>) -> Expr {
        let [images, channels, height, width] = sizes(input);
        let [filters, share, kernel @ ..] = sizes::<4>(filter);
        let [_, _, rows, columns] = sizes(offset);
        let (builder, groups) = (input.builder(), DimExpr::from(i64::from(self.groups)));
        let parts = DimExpr::from(i64::from(self.deformable_groups));
        let taps = product(&kernel);
        // [images, groups of offsets, elements of a window, rows, columns, 2]
        let of_taps = |x: &Expr, each: i64| {
            let dims = [&images, &parts, &taps, &each.into(), &rows, &columns].map(DimExpr::clone);
            x.reshape_to(&dims).transpose(&[0, 1, 2, 4, 5, 3])
        };
        let offset = of_taps(offset, 2);
        let numbers = |n: &DimExpr| positions(builder, n);
        let along = |i: usize| {
            let (stride, dilation) = (f64::from(self.strides[i]), f64::from(self.dilations[i]));
            let count = [&rows, &columns][i];
            let starts = numbers(count) * stride - f64::from(self.paddings[i]);
            let starts = if i == 0 { starts.unsqueeze(&[1]) } else { starts };
            let across = kernel[1].number(builder);
            let tap = numbers(&taps);
            let tap = if i == 0 { tap.floor_divide(&across) } else { tap.remainder(&across) };
            let places = (tap * dilation).unsqueeze(&[1, 2]) + starts;
            let offset = offset.slice(5, i as i32, i as i32 + 1).squeeze(&[5]);
            neighbours(&offset, &places, [&height, &width][i])
        };
        let (down, across) = (along(0), along(1));
        // Rows of pixels with the channels of a group, [images * groups * height * width, channels / groups].
        let dims = [&images, &parts, &(&channels / &parts), &height, &width].map(DimExpr::clone);
        let pixels = input.reshape_to(&dims).transpose(&[0, 1, 3, 4, 2]).flatten(0, 3);
        let image = numbers(&images).unsqueeze(&[1]) * parts.number(builder) + numbers(&parts);
        let first_rows = image.unsqueeze(&[2, 3, 4]) * height.number(builder);
        let corner = |(row, of_row): &(Expr, Expr), (column, of_column): &(Expr, Expr)| {
            let pixel = (&first_rows + row) * width.number(builder) + column;
            let weight = (of_row * of_column).flatten(0, 4).unsqueeze(&[1]);
            pixels.gather(&pixel.flatten(0, 4), 0) * weight
        };
        let corners = down.iter().flat_map(|row| across.iter().map(move |column| (row, column)));
        let corners = corners.map(|(row, column)| corner(row, column));
        let mut elements = corners.reduce(|sum, corner| sum + corner).unwrap_or_else(|| pixels.clone());
        if let Some(mask) = mask {
            elements = elements * of_taps(mask, 1).flatten(0, 5).unsqueeze(&[1]);
        }
        // The channels of a group and the elements of a window are summed.
        let windows = product(&[rows.clone(), columns.clone()]);
        let dims = [&images, &parts, &taps, &windows, &(&channels / &parts)].map(DimExpr::clone);
        let elements = elements.reshape_to(&dims).transpose(&[0, 1, 4, 2, 3]);
        let column = &share * &taps;
        let elements = elements.reshape_to(&[images.clone(), groups.clone(), column.clone(), windows]);
        let filter = filter.reshape_to(&[groups.clone(), &filters / &groups, column]);
        filter.matmul(&elements).reshape_to(&[images, filters, rows, columns])
    }
}

/// The elements around places with an offset along an axis, and their weights: 0 outside of the image.
fn neighbours(offset: &Expr, places: &Expr, size: &DimExpr) -> [(Expr, Expr); 2] {
    let [zero, last] = [0.into(), size - 1].map(|n: DimExpr| n.number(offset.builder()));
    let floor = offset.floor();
    // Without the place, whose digits would take the place of the weight's.
    let weight = offset - &floor;
    let first = floor.cast(DType::I64) + places;
    let neighbour = |element: Expr, weight: Expr| {
        let inside = element.maximum(&zero).minimum(&last);
        let weight = weight * inside.equal(&element).cast(offset.dtype());
        (inside, weight)
    };
    [neighbour(first.clone(), 1.0 - weight.clone()), neighbour(first + 1.0, weight)]
}

/// Declares an operator, with a mask or without one.
macro_rules! deformable {
    (
        $(#[doc = $doc:literal])* $op:ident { $($(#[doc = $mask_doc:literal])* $mask:ident)? }
    ) => {
        $(#[doc = $doc])*
        #[register_op(grad = Composed, composed)]
        pub struct $op<V = Var> {
            /// Images, `[images, channels, height, width]`.
            #[input]
            pub input: V,
            /// Vertical and horizontal offset of each element of each window, `[images, deformable_groups * elements of a
            /// window * 2, rows, columns]`.
            #[input]
            pub offset: V,
            $($(#[doc = $mask_doc])* #[input] pub $mask: V,)?
            /// Filters, `[filters, channels / groups, height, width]`.
            #[input]
            pub filter: V,
            /// `[images, filters, rows, columns]`.
            #[output]
            pub output: V,
            /// Position of the windows.
            #[attrs]
            pub conv: DeformableConvAttrs,
        }
        impl Infer for $op<Meta> {
            fn infer(&mut self) -> Result<()> {
                let mask: &[&Meta] = &[$(&self.$mask)?];
                let slots = [&self.input, &self.filter, &self.offset];
                self.output.set(self.input.dtype, self.conv.convolved(slots, mask.first().copied())?);
                Ok(())
            }
        }
        impl Composition for $op<Expr> {
            fn compose(&mut self) {
                let mask: &[&Expr] = &[$(&self.$mask)?];
                let slots = [&self.input, &self.filter, &self.offset];
                self.output = self.conv.compose(slots, mask.first().copied());
            }
        }
    };
}

deformable!(
    /// Convolution of images whose windows are deformed (Zhu et al. 2019):
    /// `output[m, y, x] = Σ input[c, p + offset[i, j]] * mask[i, j] * filter[m, c, i, j]`, where
    /// `p = (y * stride + i * dilation - padding, …)`, summed over the channels `c` of a group and the elements `i`, `j` of a
    /// filter.
    ///
    /// Elements at positions between others are interpolated linearly; those outside of the image count as 0.
    DeformableConv {
        /// Factor of each element of each window, `[images, deformable_groups * elements of a window, rows, columns]`.
        mask
    }
);
deformable!(
    /// Convolution of images whose windows are deformed (Dai et al. 2017): `deformable_conv` without factors.
    DeformableConvV1 {}
);

autobwd::samples!(
    DeformableConv,
    [
        deformable([1, 2, 4, 3], [5, 2, 1, 1], [4, 3], DeformableConvAttrs::default()),
        deformable([1, 1, 3, 4], [2, 1, 2, 1], [2, 4], DeformableConvAttrs::default()),
        deformable(
            [1, 4, 3, 2],
            [2, 2, 1, 2],
            [2, 3],
            DeformableConvAttrs::default()
                .groups(2)
                .deformable_groups(2)
                .paddings(vec![0, 1])
                .strides(vec![2, 1])
        ),
        deformable(
            [2, 1, 4, 2],
            [1, 1, 2, 2],
            [2, 1],
            DeformableConvAttrs::default().dilations(vec![2, 1]).im2col_step(1)
        ),
        deformable([0, 2, 3, 4], [2, 2, 2, 1], [2, 4], DeformableConvAttrs::default()),
        deformable([1, 2, 3, 4], [2, 2, 2, 1], [3, 4], DeformableConvAttrs::default())
            .fails("`Offset`: [1, 4, 2, 4] is needed, 2 for each element of a window"),
        DeformableConv {
            mask: uniform([1, 3, 2, 4]),
            ..deformable([1, 2, 3, 4], [2, 2, 2, 1], [2, 4], DeformableConvAttrs::default())
        }
        .fails("`Mask`: [1, 2, 2, 4] is needed, 1 for each element of a window"),
        deformable([1, 3, 3, 4], [2, 2, 2, 1], [2, 4], DeformableConvAttrs::default())
            .fails("`Filter`: filters of 3 channels in 1 groups are needed"),
        deformable([1, 4, 3, 4], [3, 2, 2, 1], [2, 4], DeformableConvAttrs::default().groups(2))
            .fails("`Filter`: a number of filters divisible by 2 groups is needed"),
        deformable([1, 3, 3, 4], [2, 3, 2, 1], [2, 4], DeformableConvAttrs::default().deformable_groups(2))
            .fails("`Input`: a number of channels divisible by 2 groups is needed"),
        deformable([1, 2, 3, 4], [2, 2, 0, 1], [2, 4], DeformableConvAttrs::default())
            .fails("`Filter`: windows of at least one element are needed"),
        deformable([1, 2, 3, 4], [2, 2, 4, 1], [2, 4], DeformableConvAttrs::default())
            .fails("`Input`: at least 4 rows and columns are needed for a window"),
        deformable([1, 2, 3, 4], [2, 2, 2, 1], [2, 4], DeformableConvAttrs::default().strides(vec![0, 1]))
            .fails("attribute `strides`: 2 numbers of at least 1 are needed, not [0, 1]"),
    ]
);
autobwd::samples!(
    DeformableConvV1,
    [
        without_mask([1, 2, 4, 3], [5, 2, 1, 1], [4, 3], DeformableConvAttrs::default()),
        without_mask(
            [1, 4, 3, 2],
            [2, 2, 1, 2],
            [2, 3],
            DeformableConvAttrs::default()
                .groups(2)
                .deformable_groups(2)
                .paddings(vec![0, 1])
                .strides(vec![2, 1])
        ),
        without_mask(
            [2, 1, 4, 2],
            [1, 1, 2, 2],
            [2, 1],
            DeformableConvAttrs::default().dilations(vec![2, 1]).im2col_step(1)
        ),
        without_mask([1, 2, 3, 4], [2, 2, 2, 1], [3, 4], DeformableConvAttrs::default())
            .fails("`Offset`: [1, 4, 2, 4] is needed, 2 for each element of a window"),
    ]
);

fn deformable(
    input: [usize; 4],
    filter: [usize; 4],
    windows: [usize; 2],
    conv: DeformableConvAttrs,
) -> DeformableConv<Draw> {
    let taps = filter[2] * filter[3] * conv.deformable_groups as usize;
    let mask = uniform([input[0], taps, windows[0], windows[1]]);
    let DeformableConvV1 { input, offset, filter, output, conv } = without_mask(input, filter, windows, conv);
    DeformableConv { input, offset, mask, filter, output, conv }
}

fn without_mask(
    input: [usize; 4],
    filter: [usize; 4],
    [rows, columns]: [usize; 2],
    conv: DeformableConvAttrs,
) -> DeformableConvV1<Draw> {
    let taps = filter[2] * filter[3] * conv.deformable_groups as usize;
    let offset = between(-1.7, 1.7, [input[0], 2 * taps, rows, columns]);
    DeformableConvV1 { input: uniform(input), offset, filter: uniform(filter), output: out(), conv }
}

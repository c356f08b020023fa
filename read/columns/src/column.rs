//! The values of one column, filled while the plan visits a record.
//!
//! A column is a visitor. It puts visited values into the right structure, list or variant by counting open groups. Any
//! sequence of visits leaves a column consistent: values of another kind are ignored, and missing values become null.

use std::collections::HashMap;

use arrow_array::{ArrayRef, make_array};
use arrow_buffer::{BooleanBufferBuilder, Buffer, NullBufferBuilder};
use arrow_data::ArrayData;
use arrow_schema::{ArrowError, DataType};
use dormouse_ctf::plan::{Group, IntegerNode, Visitor};

use crate::kind::Kind;

/// A column under construction.
pub(crate) struct Column {
    kind: Kind,
    is_text_binary: bool,
    data_type: DataType,
    values: Values,
    nulls: NullBufferBuilder,
    len: usize,
    /// Number of open lists, structures and variants.
    depth: u32,
    /// Index of the current member of a structure, or option of a variant.
    at: usize,
}

enum Values {
    U8(Vec<u8>),
    U16(Vec<u16>),
    U32(Vec<u32>),
    U64(Vec<u64>),
    I128(Vec<i128>),
    F32(Vec<f32>),
    F64(Vec<f64>),
    Bool(BooleanBufferBuilder),
    /// Text and bytes. Invalid UTF-8 in text columns is replaced.
    Bytes {
        offsets: Vec<i32>,
        bytes: Vec<u8>,
        is_utf8: bool,
    },
    Labels(Labels),
    List {
        offsets: Vec<i32>,
        element: Box<Column>,
    },
    /// Structures and variants.
    Members(Vec<Column>),
}

/// The distinct labels of enumerations.
#[derive(Default)]
struct Labels {
    keys: Vec<i32>,
    names: Vec<String>,
    key_of_name: HashMap<String, i32>,
    /// Keys by address of the class's labels, and value.
    key_of_value: HashMap<(usize, u64), i32>,
}

impl Labels {
    fn push(&mut self, value: u64, class: &IntegerNode) {
        let place = class.labels.as_ref().map_or(0, |labels| labels.as_ptr() as usize);
        let key = match self.key_of_value.get(&(place, value)) {
            Some(key) => *key,
            None => {
                let name = label(value, class);
                let next = self.names.len() as i32;
                let key = *self.key_of_name.entry(name.clone()).or_insert(next);
                if key == next {
                    self.names.push(name);
                }
                self.key_of_value.insert((place, value), key);
                key
            }
        };
        self.keys.push(key);
    }
}

/// Returns the labels of a value, or the number if it has none.
fn label(value: u64, class: &IntegerNode) -> String {
    let names: Vec<&str> = class.labels_of(value).collect();
    match names.is_empty() {
        true if class.is_signed => (value as i64).to_string(),
        true => value.to_string(),
        false => names.join(", "),
    }
}

impl Column {
    pub(crate) fn new(kind: Kind, is_text_binary: bool) -> Column {
        let below = |kind: &Kind| Column::new(kind.clone(), is_text_binary);
        let bytes = |is_utf8| Values::Bytes { offsets: vec![0], bytes: Vec::new(), is_utf8 };
        let values = match &kind {
            Kind::Integer { size_bits: 8, .. } => Values::U8(Vec::new()),
            Kind::Integer { size_bits: 16, .. } => Values::U16(Vec::new()),
            Kind::Integer { size_bits: 32, .. } => Values::U32(Vec::new()),
            Kind::Integer { .. } => Values::U64(Vec::new()),
            Kind::Wide => Values::I128(Vec::new()),
            Kind::Bool => Values::Bool(BooleanBufferBuilder::new(0)),
            Kind::Float { is_single: true } => Values::F32(Vec::new()),
            Kind::Float { is_single: false } => Values::F64(Vec::new()),
            Kind::Text => bytes(!is_text_binary),
            Kind::Bytes => bytes(false),
            Kind::Label => Values::Labels(Labels::default()),
            Kind::List(element) => Values::List { offsets: vec![0], element: Box::new(below(element)) },
            Kind::Struct(of) | Kind::Variant(of) => Values::Members(of.iter().map(|(_, kind)| below(kind)).collect()),
        };
        let data_type = kind.data_type(is_text_binary);
        Column { kind, is_text_binary, data_type, values, nulls: NullBufferBuilder::new(0), len: 0, depth: 0, at: 0 }
    }

    /// Extends the column to `len` values with nulls.
    #[inline]
    pub(crate) fn fill(&mut self, len: usize) {
        if self.len < len {
            self.fill_slowly(len);
        }
    }

    fn fill_slowly(&mut self, len: usize) {
        let count = len - self.len;
        match &mut self.values {
            Values::U8(values) => values.resize(len, 0),
            Values::U16(values) => values.resize(len, 0),
            Values::U32(values) => values.resize(len, 0),
            Values::U64(values) => values.resize(len, 0),
            Values::I128(values) => values.resize(len, 0),
            Values::F32(values) => values.resize(len, 0.0),
            Values::F64(values) => values.resize(len, 0.0),
            Values::Bool(values) => values.append_n(count, false),
            Values::Bytes { offsets, .. } | Values::List { offsets, .. } => {
                let last = offsets.last().copied().unwrap_or(0);
                offsets.resize(len + 1, last);
            }
            Values::Labels(labels) => labels.keys.resize(len, 0),
            Values::Members(members) => members.iter_mut().for_each(|member| member.fill(len)),
        }
        self.nulls.append_n_nulls(count);
        self.len = len;
    }

    #[inline(always)]
    fn pushed(&mut self) {
        self.nulls.append_non_null();
        self.len += 1;
    }

    /// Returns the number of elements in its lists, or its length if it has none.
    pub(crate) fn element_count(&self) -> usize {
        match &self.values {
            Values::List { element, .. } => element.element_count(),
            Values::Members(members) => members.iter().map(Column::element_count).max().unwrap_or(0),
            _ => self.len,
        }
    }

    /// Whether it has lists.
    pub(crate) fn has_elements(&self) -> bool {
        match &self.values {
            Values::List { .. } => true,
            Values::Members(members) => members.iter().any(Column::has_elements),
            _ => false,
        }
    }

    /// Returns `len` values, with nulls for missing ones, and empties the column. It keeps room for as many values:
    /// most batches have as many rows as the one before, and growing a vector touches fresh memory twice.
    pub(crate) fn finish(&mut self, len: usize) -> Result<ArrayRef, ArrowError> {
        self.fill(len);
        let mut empty = Column::new(self.kind.clone(), self.is_text_binary);
        empty.reserve(len);
        std::mem::replace(self, empty).into_data().map(make_array)
    }

    fn reserve(&mut self, len: usize) {
        match &mut self.values {
            Values::U8(values) => values.reserve(len),
            Values::U16(values) => values.reserve(len),
            Values::U32(values) => values.reserve(len),
            Values::U64(values) => values.reserve(len),
            Values::I128(values) => values.reserve(len),
            Values::F32(values) => values.reserve(len),
            Values::F64(values) => values.reserve(len),
            Values::Bool(values) => values.reserve(len),
            Values::Bytes { offsets, .. } | Values::List { offsets, .. } => offsets.reserve(len),
            Values::Labels(labels) => labels.keys.reserve(len),
            Values::Members(members) => members.iter_mut().for_each(|member| member.reserve(len)),
        }
    }

    fn into_data(mut self) -> Result<ArrayData, ArrowError> {
        let len = self.len;
        let data = ArrayData::builder(self.data_type.clone()).len(len).nulls(self.nulls.finish());
        let data = match self.values {
            Values::U8(values) => data.add_buffer(Buffer::from_vec(values)),
            Values::U16(values) => data.add_buffer(Buffer::from_vec(values)),
            Values::U32(values) => data.add_buffer(Buffer::from_vec(values)),
            Values::U64(values) => data.add_buffer(Buffer::from_vec(values)),
            Values::I128(values) => data.add_buffer(Buffer::from_vec(values)),
            Values::F32(values) => data.add_buffer(Buffer::from_vec(values)),
            Values::F64(values) => data.add_buffer(Buffer::from_vec(values)),
            Values::Bool(mut values) => data.add_buffer(values.finish().into_inner()),
            Values::Bytes { offsets, bytes, .. } => {
                data.add_buffer(Buffer::from_vec(offsets)).add_buffer(Buffer::from_vec(bytes))
            }
            Values::Labels(mut labels) => {
                // Nulls also have a key, which must refer to a label.
                if labels.names.is_empty() && len > 0 {
                    labels.names.push(String::new());
                }
                let names = arrow_array::StringArray::from(labels.names);
                data.add_buffer(Buffer::from_vec(labels.keys)).add_child_data(arrow_array::Array::to_data(&names))
            }
            Values::List { offsets, element } => {
                data.add_buffer(Buffer::from_vec(offsets)).add_child_data(element.into_data()?)
            }
            Values::Members(members) => {
                let mut data = data;
                for member in members {
                    data = data.add_child_data(member.into_data()?);
                }
                data
            }
        };
        data.build()
    }

    /// Returns the column for the next value, within an open group.
    fn child(&mut self) -> Option<&mut Column> {
        match &mut self.values {
            Values::List { element, .. } => Some(element),
            Values::Members(members) => members.get_mut(self.at),
            _ => None,
        }
    }
}

// Visits within an inner group are passed on unchanged, whether or not the inner column uses them.
#[allow(clippy::only_used_in_recursion)]
impl Visitor for Column {
    fn name(&mut self, name: &str) {
        if self.depth > 1 {
            if let Some(child) = self.child() {
                child.name(name);
            }
        } else if self.depth == 1 {
            self.at = self.at.wrapping_add(1);
        }
    }

    fn option(&mut self, name: &str) {
        if self.depth > 1 {
            if let Some(child) = self.child() {
                child.option(name);
            }
        } else if let Kind::Variant(options) = &self.kind {
            self.at = options.iter().position(|(option, _)| option == name).unwrap_or(usize::MAX);
        }
    }

    fn element(&mut self, index: u64) {
        if self.depth > 1
            && let Some(child) = self.child()
        {
            child.element(index);
        }
    }

    #[inline]
    fn integer(&mut self, value: u64, class: &IntegerNode) {
        if self.depth > 0 {
            if let Values::Bytes { bytes, .. } = &mut self.values {
                bytes.push(value as u8);
            } else if let Some(child) = self.child() {
                child.integer(value, class);
            }
            return;
        }
        match &mut self.values {
            Values::U8(values) => values.push(value as u8),
            Values::U16(values) => values.push(value as u16),
            Values::U32(values) => values.push(value as u32),
            Values::U64(values) => values.push(value),
            Values::I128(values) if class.is_signed => values.push((value as i64).into()),
            Values::I128(values) => values.push(value.into()),
            Values::Bool(values) => values.append(value != 0),
            Values::Labels(labels) => labels.push(value, class),
            _ => return,
        }
        self.pushed();
    }

    fn single(&mut self, value: f32) {
        self.float(value.into());
    }

    fn float(&mut self, value: f64) {
        if self.depth > 0 {
            if let Some(child) = self.child() {
                child.float(value);
            }
            return;
        }
        match &mut self.values {
            Values::F32(values) => values.push(value as f32),
            Values::F64(values) => values.push(value),
            _ => return,
        }
        self.pushed();
    }

    fn text(&mut self, text: &[u8]) {
        if self.depth > 0 {
            if let Some(child) = self.child() {
                child.text(text);
            }
            return;
        }
        let Values::Bytes { offsets, bytes, is_utf8 } = &mut self.values else { return };
        match (*is_utf8, std::str::from_utf8(text)) {
            (true, Err(_)) => bytes.extend_from_slice(String::from_utf8_lossy(text).as_bytes()),
            _ => bytes.extend_from_slice(text),
        }
        offsets.push(bytes.len() as i32);
        self.pushed();
    }

    fn blob(&mut self, blob: &[u8], is_uuid: bool) {
        if self.depth > 0 {
            if let Some(child) = self.child() {
                child.blob(blob, is_uuid);
            }
            return;
        }
        let Values::Bytes { offsets, bytes, .. } = &mut self.values else { return };
        bytes.extend_from_slice(blob);
        offsets.push(bytes.len() as i32);
        self.pushed();
    }

    fn absent(&mut self) {
        if self.depth > 0 {
            if let Some(child) = self.child() {
                child.absent();
            }
            return;
        }
        self.fill(self.len + 1);
    }

    fn open(&mut self, group: Group) {
        self.depth += 1;
        if self.depth > 1 {
            if let Some(child) = self.child() {
                child.open(group);
            }
        } else {
            // An optional field has a single member.
            self.at = if group == Group::Optional { 0 } else { usize::MAX };
        }
    }

    fn close(&mut self, group: Group) {
        self.depth = self.depth.saturating_sub(1);
        if self.depth > 0 {
            if let Some(child) = self.child() {
                child.close(group);
            }
            return;
        }
        let len = self.len + 1;
        match &mut self.values {
            Values::List { offsets, element } => offsets.push(element.len as i32),
            Values::Bytes { offsets, bytes, .. } if self.kind == Kind::Bytes => offsets.push(bytes.len() as i32),
            Values::Members(members) => members.iter_mut().for_each(|member| member.fill(len)),
            _ => return,
        }
        self.pushed();
    }
}

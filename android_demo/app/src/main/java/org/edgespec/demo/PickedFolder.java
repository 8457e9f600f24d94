package org.edgespec.demo;

import android.content.ContentResolver;
import android.database.Cursor;
import android.net.Uri;
import android.os.ParcelFileDescriptor;
import android.provider.DocumentsContract;
import android.provider.DocumentsContract.Document;

import java.io.FileNotFoundException;
import java.util.HashMap;
import java.util.Map;

/** A folder from the system's picker, for Python: names of its files, and a descriptor for each. */
public final class PickedFolder {
    private final ContentResolver resolver;
    private final String name;
    private final Map<String, Uri> files = new HashMap<>();

    PickedFolder(ContentResolver resolver, Uri tree) {
        this.resolver = resolver;
        String folder = DocumentsContract.getTreeDocumentId(tree);
        name = nameOf(DocumentsContract.buildDocumentUriUsingTree(tree, folder));
        Uri children = DocumentsContract.buildChildDocumentsUriUsingTree(tree, folder);
        String[] columns = {Document.COLUMN_DOCUMENT_ID, Document.COLUMN_DISPLAY_NAME};
        try (Cursor rows = resolver.query(children, columns, null, null, null)) {
            while (rows != null && rows.moveToNext()) {
                files.put(rows.getString(1), DocumentsContract.buildDocumentUriUsingTree(tree, rows.getString(0)));
            }
        }
    }

    /** What the folder is called. */
    public String name() {
        return name;
    }

    /** Names of the files in it. */
    public String[] names() {
        return files.keySet().toArray(new String[0]);
    }

    /** A file descriptor of the file, which the caller closes. */
    public int open(String file) throws FileNotFoundException {
        ParcelFileDescriptor descriptor = resolver.openFileDescriptor(files.get(file), "r");
        if (descriptor == null) {
            throw new FileNotFoundException(file);
        }
        return descriptor.detachFd();
    }

    private String nameOf(Uri document) {
        try (Cursor rows = resolver.query(document, new String[] {Document.COLUMN_DISPLAY_NAME}, null, null, null)) {
            String found = rows != null && rows.moveToNext() ? rows.getString(0) : null;
            return found == null || found.isEmpty() ? "bundle" : found;
        }
    }
}

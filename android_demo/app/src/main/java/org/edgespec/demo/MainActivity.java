package org.edgespec.demo;

import android.app.Activity;
import android.content.ActivityNotFoundException;
import android.content.Intent;
import android.os.Bundle;
import android.view.View;
import android.view.WindowInsets;
import android.webkit.JavascriptInterface;
import android.webkit.WebSettings;
import android.webkit.WebView;

import org.json.JSONException;
import org.json.JSONObject;

/** A WebView with the page, and the way between the page and Python. */
public final class MainActivity extends Activity {
    private static final int PICK_FOLDER = 1;
    private static final String PAGE = "file:///android_asset/page.html";

    private WebView page;

    @Override
    protected void onCreate(Bundle state) {
        super.onCreate(state);
        page = new WebView(this);
        WebSettings settings = page.getSettings();
        settings.setJavaScriptEnabled(true);
        settings.setAllowFileAccess(false);
        settings.setAllowContentAccess(false);
        settings.setBlockNetworkLoads(true);
        page.addJavascriptInterface(new Bridge(), "Android");
        page.setOnApplyWindowInsetsListener(new View.OnApplyWindowInsetsListener() {
            @Override
            @SuppressWarnings("deprecation") // the newer way needs API 30
            public WindowInsets onApplyWindowInsets(View view, WindowInsets insets) {
                view.setPadding(
                        insets.getSystemWindowInsetLeft(), insets.getSystemWindowInsetTop(),
                        insets.getSystemWindowInsetRight(), insets.getSystemWindowInsetBottom());
                return insets;
            }
        });
        setContentView(page);
        app().setPage(page);
        page.loadUrl(PAGE);
    }

    @Override
    protected void onStop() {
        app().save();
        super.onStop();
    }

    @Override
    protected void onDestroy() {
        app().setPage(null);
        page.destroy();
        super.onDestroy();
    }

    @Override
    protected void onActivityResult(int request, int result, Intent data) {
        super.onActivityResult(request, result, data);
        if (request == PICK_FOLDER && result == RESULT_OK && data != null && data.getData() != null) {
            app().importFrom(data.getData());
        }
    }

    private DemoApplication app() {
        return (DemoApplication) getApplication();
    }

    private void pickFolder() {
        try {
            startActivityForResult(new Intent(Intent.ACTION_OPEN_DOCUMENT_TREE), PICK_FOLDER);
        } catch (ActivityNotFoundException error) {
            app().onEvent("{\"type\": \"error\", \"text\": \"This device has no file picker. Copy the bundle with adb push.\"}");
        }
    }

    /** What the page's script sees as Android. Its methods run on a thread of the WebView. */
    private final class Bridge {
        @JavascriptInterface
        public void receive(String command) {
            String type;
            try {
                type = new JSONObject(command).optString("type");
            } catch (JSONException error) {
                return;
            }
            if (!"import".equals(type)) {
                app().receive(command);
                return;
            }
            runOnUiThread(new Runnable() {
                @Override
                public void run() {
                    pickFolder();
                }
            });
        }
    }
}
